//! The identity of a verified token: username, groups and extra attributes from its claims, and the
//! rules that both must satisfy.
//!
//! Follows the order and the error texts of Kubernetes' OIDC authenticator, which upstream uses.
//! All functions are pure.

use pinniped_concierge_domain::jwt_authenticator::validation::{
    Expression, Extra, IdentityRules, RequiredClaim, Rule, Source,
};
use pinniped_concierge_domain::status_text::StatusText;
use pinniped_go_compat::json::quote;
use pinniped_kube_request::identity::{CREDENTIAL_ID_EXTRA, User};

use super::claim::{self, ClaimError, Claims};
use super::expression::{Evaluated, Input, Program};

/// The reasons why the claims of a valid token give no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The claim with the username cannot be used.
    #[error("oidc: parse username claims {}: {cause}", quote(.claim))]
    UsernameClaim {
        /// The name of the claim.
        claim: String,
        /// The reason.
        #[source]
        cause: ClaimError,
    },
    /// The claim `email_verified` is not a truth value.
    #[error("oidc: parse 'email_verified' claim: {0}")]
    EmailVerifiedClaim(#[source] ClaimError),
    /// The username is an email address that is not verified.
    #[error("oidc: email not verified")]
    EmailNotVerified,
    /// The expression for the username has no usable value.
    #[error("oidc: error evaluating username claim expression: {0}")]
    UsernameExpression(#[source] ExpressionError),
    /// The expression for the username is the empty text.
    #[error("oidc: empty username via CEL expression is not allowed")]
    EmptyUsername,
    /// The claim with the groups cannot be used.
    #[error("oidc: parse groups claim {}: {cause}", quote(.claim))]
    GroupsClaim {
        /// The name of the claim.
        claim: String,
        /// The reason.
        #[source]
        cause: ClaimError,
    },
    /// The expression for the groups has no usable value.
    #[error("oidc: error evaluating group claim expression: {0}")]
    GroupsExpression(#[source] ExpressionError),
    /// The expression for an extra attribute failed. Upstream adds no prefix.
    #[error(transparent)]
    ExtraExpression(ExpressionError),
    /// The expression for an extra attribute has a value of another type.
    #[error("oidc: error evaluating extra claim expression: {expression}: {cause}")]
    ExtraType {
        /// The expression.
        expression: String,
        /// The reason.
        #[source]
        cause: ExpressionError,
    },
    /// The token does not have a required claim.
    #[error("oidc: required claim {0} not present in ID token")]
    RequiredClaimNotPresent(String),
    /// A required claim is not a text.
    #[error("oidc: parse claim {claim}: {cause}")]
    RequiredClaimType {
        /// The name of the claim.
        claim: String,
        /// The reason.
        #[source]
        cause: ClaimError,
    },
    /// A required claim has another value.
    #[error("oidc: required claim {claim} value does not match. Got = {found}, want = {wanted}")]
    RequiredClaimValue {
        /// The name of the claim.
        claim: String,
        /// Its value in the token.
        found: String,
        /// The required value.
        wanted: String,
    },
    /// A rule for the claims is not satisfied.
    #[error("oidc: error evaluating claim validation expression: {0}")]
    ClaimRule(#[source] ExpressionError),
    /// A rule for the user is not satisfied.
    #[error("oidc: error evaluating user info validation rule: {0}")]
    UserRule(#[source] ExpressionError),
}

/// The reasons why the result of an expression cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// The evaluation failed.
    #[error("expression '{expression}' resulted in error: {cause}")]
    Evaluation {
        /// The expression.
        expression: String,
        /// The reason.
        #[source]
        cause: StatusText,
    },
    /// A username is not a text.
    #[error("username claim expression must return a string")]
    NotString,
    /// A list of groups or values has another type.
    #[error("expression must return a string or a list of strings")]
    NotStrings,
    /// A rule is not a truth value.
    #[error("validation expression must return a boolean")]
    NotBool,
    /// A rule is false.
    #[error("validation expression '{expression}' failed: {message}")]
    False {
        /// The expression.
        expression: String,
        /// The message of the rule, which may be empty.
        message: String,
    },
}

/// Returns the user of a token with these claims.
///
/// # Errors
///
/// Returns the first failure in upstream's order.
pub(super) fn user_of(claims: &Claims, rules: &IdentityRules<Program>) -> Result<User, IdentityError> {
    let input = uses_claims(rules).then(|| Input::claims(claims));
    let name = username(&rules.username, claims, input.as_ref())?;
    let groups = groups(&rules.groups, claims, input.as_ref())?;
    let mut user = User { name, groups, ..User::default() };
    if let Some(id) = claims.get("jti").and_then(|jti| claim::string(jti).ok()).filter(|id| !id.is_empty()) {
        user.extra.insert(CREDENTIAL_ID_EXTRA.to_owned(), vec![format!("JTI={id}")]);
    }
    if let Some(input) = &input {
        user.extra.extend(extra(&rules.extra, input)?);
    }
    rules.required_claims.iter().try_for_each(|required| check_required(required, claims))?;
    if let Some(input) = &input {
        check_rules(&rules.claim_rules, input).map_err(IdentityError::ClaimRule)?;
    }
    if !rules.user_rules.is_empty() {
        check_rules(&rules.user_rules, &Input::user(&user)).map_err(IdentityError::UserRule)?;
    }
    Ok(user)
}

fn uses_claims(rules: &IdentityRules<Program>) -> bool {
    let is_expression = |source: &Source<Program>| matches!(source, Source::Expression(_));
    is_expression(&rules.username)
        || is_expression(&rules.groups)
        || !rules.extra.is_empty()
        || !rules.claim_rules.is_empty()
}

fn username(
    source: &Source<Program>,
    claims: &Claims,
    input: Option<&Input>,
) -> Result<String, IdentityError> {
    let name = match source {
        Source::Claim(name) => name,
        Source::Expression(expression) => {
            return match evaluate(expression, input).map_err(IdentityError::UsernameExpression)? {
                Evaluated::Text(text) if text.is_empty() => Err(IdentityError::EmptyUsername),
                Evaluated::Text(text) => Ok(text),
                _ => Err(IdentityError::UsernameExpression(ExpressionError::NotString)),
            };
        }
    };
    let value = claims.get(name).ok_or(ClaimError::NotPresent);
    let username = value
        .and_then(claim::string)
        .map_err(|cause| IdentityError::UsernameClaim { claim: name.clone(), cause })?;
    if name == "email"
        && let Some(verified) = claims.get("email_verified")
        && !claim::boolean(verified).map_err(IdentityError::EmailVerifiedClaim)?
    {
        return Err(IdentityError::EmailNotVerified);
    }
    Ok(username.to_owned())
}

fn groups(
    source: &Source<Program>,
    claims: &Claims,
    input: Option<&Input>,
) -> Result<Vec<String>, IdentityError> {
    match source {
        Source::Claim(name) => match claims.get(name) {
            None => Ok(Vec::new()),
            Some(value) => claim::strings(value)
                .map_err(|cause| IdentityError::GroupsClaim { claim: name.clone(), cause }),
        },
        Source::Expression(expression) => {
            let value = evaluate(expression, input).map_err(IdentityError::GroupsExpression)?;
            values(value).map_err(IdentityError::GroupsExpression)
        }
    }
}

/// Evaluates all attributes before it converts any, as upstream does.
fn extra(mappings: &[Extra<Program>], input: &Input) -> Result<Vec<(String, Vec<String>)>, IdentityError> {
    let evaluated: Vec<_> = mappings
        .iter()
        .map(|mapping| evaluate(&mapping.value, Some(input)))
        .collect::<Result<_, _>>()
        .map_err(IdentityError::ExtraExpression)?;
    let mut extra = Vec::new();
    for (mapping, value) in mappings.iter().zip(evaluated) {
        let expression = || mapping.value.text.clone();
        let values =
            values(value).map_err(|cause| IdentityError::ExtraType { expression: expression(), cause })?;
        if !values.is_empty() {
            extra.push((mapping.key.clone(), values));
        }
    }
    Ok(extra)
}

fn check_required(required: &RequiredClaim, claims: &Claims) -> Result<(), IdentityError> {
    let RequiredClaim { claim, value: wanted } = required;
    let Some(value) = claims.get(claim) else {
        return Err(IdentityError::RequiredClaimNotPresent(claim.clone()));
    };
    let found = claim::string(value)
        .map_err(|cause| IdentityError::RequiredClaimType { claim: claim.clone(), cause })?;
    if found != wanted {
        let (claim, found, wanted) = (claim.clone(), found.to_owned(), wanted.clone());
        return Err(IdentityError::RequiredClaimValue { claim, found, wanted });
    }
    Ok(())
}

/// Evaluates all rules before it inspects a result, as upstream does.
fn check_rules(rules: &[Rule<Program>], input: &Input) -> Result<(), ExpressionError> {
    let results: Vec<_> =
        rules.iter().map(|rule| evaluate(&rule.expression, Some(input))).collect::<Result<_, _>>()?;
    for (rule, result) in rules.iter().zip(results) {
        match result {
            Evaluated::Bool(true) => {}
            Evaluated::Bool(false) => {
                let (expression, message) = (rule.expression.text.clone(), rule.message.clone());
                return Err(ExpressionError::False { expression, message });
            }
            _ => return Err(ExpressionError::NotBool),
        }
    }
    Ok(())
}

fn evaluate(expression: &Expression<Program>, input: Option<&Input>) -> Result<Evaluated, ExpressionError> {
    let result = match input {
        Some(input) => expression.program.evaluate(input),
        None => Err("no input".into()),
    };
    result.map_err(|cause| ExpressionError::Evaluation { expression: expression.text.clone(), cause })
}

/// Converts the value of an expression to a list. Empty texts are dropped.
fn values(value: Evaluated) -> Result<Vec<String>, ExpressionError> {
    let texts = match value {
        Evaluated::Text(text) => vec![text],
        Evaluated::Texts(texts) => texts,
        Evaluated::Null => Vec::new(),
        Evaluated::Bool(_) | Evaluated::Other => return Err(ExpressionError::NotStrings),
    };
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}

#[cfg(test)]
mod tests;
