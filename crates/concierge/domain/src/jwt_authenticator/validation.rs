//! Validates the spec and compiles its expressions.
//!
//! Follows `ValidateAuthenticationConfiguration` of Kubernetes' structured authentication, which
//! upstream calls with the fields of the spec and whose field paths it rewrites to those of the
//! spec. The order is: issuer, rules for claims, username, groups, extra attributes, the rule about
//! verified email addresses, rules for the user, and the additional check of extra keys that
//! upstream makes.

use std::collections::HashSet;

use pinniped_concierge_api::authentication::{
    ClaimValidationRule, ExtraMapping, JwtAuthenticatorSpec, JwtTokenClaims, UserValidationRule,
};
use pinniped_go_compat::url::parse;
use pinniped_kube_request::identity::{
    EQUALS_SIGN_IN_KEY, RESERVED_KEY, domain_prefixed_path_errors, is_reserved_extra_key,
};

use super::expression::{CompileFailure, Compiler, Program, Variable};
use super::field_error::{FieldError, FieldErrors};
use super::{DEFAULT_GROUPS_CLAIM, DEFAULT_USERNAME_CLAIM};

/// The rules by which a token's claims become an identity. `P` is a compiled expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityRules<P> {
    /// The source of the username.
    pub username: Source<P>,
    /// The source of the groups.
    pub groups: Source<P>,
    /// The sources of extra attributes.
    pub extra: Vec<Extra<P>>,
    /// The claims that must have a certain value.
    pub required_claims: Vec<RequiredClaim>,
    /// The expressions over the claims that must be true.
    pub claim_rules: Vec<Rule<P>>,
    /// The expressions over the user that must be true.
    pub user_rules: Vec<Rule<P>>,
}

/// The source of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source<P> {
    /// The claim with this name.
    Claim(String),
    /// An expression over the claims.
    Expression(Expression<P>),
}

/// An expression with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression<P> {
    /// The text, for messages.
    pub text: String,
    /// The compiled expression.
    pub program: P,
}

/// The source of an extra attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra<P> {
    /// The key of the attribute.
    pub key: String,
    /// The expression for its values.
    pub value: Expression<P>,
}

/// A claim that must have a certain value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredClaim {
    /// The name of the claim.
    pub claim: String,
    /// The value, which may be empty.
    pub value: String,
}

/// An expression that must be true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule<P> {
    /// The expression.
    pub expression: Expression<P>,
    /// The message if it is false; may be empty.
    pub message: String,
}

/// Validates a spec.
///
/// # Errors
///
/// Returns every error in upstream's order.
pub fn validate<C: Compiler>(
    spec: &JwtAuthenticatorSpec,
    compiler: &C,
) -> Result<IdentityRules<C::Program>, FieldErrors> {
    let mut validation =
        Validation { compiler, errors: Vec::new(), uses_email: false, uses_email_verified: false };
    validation.issuer(&spec.issuer);
    validation.audience(&spec.audience);
    let (required_claims, claim_rules) = validation.claim_rules(&spec.claim_validation_rules);
    let claims = &spec.claims;
    let username = validation.username(claims);
    let groups = validation.groups(claims);
    let extra = validation.extra(&claims.extra);
    validation.email(&claims.username_expression);
    let user_rules = validation.user_rules(&spec.user_validation_rules);
    validation.equals_signs(&claims.extra);
    match (username, groups, validation.errors) {
        (Some(username), Some(groups), errors) if errors.is_empty() => {
            Ok(IdentityRules { username, groups, extra, required_claims, claim_rules, user_rules })
        }
        (_, _, errors) => Err(FieldErrors(errors)),
    }
}

/// The state of a validation.
struct Validation<'a, C> {
    compiler: &'a C,
    errors: Vec<FieldError>,
    uses_email: bool,
    uses_email_verified: bool,
}

impl<C: Compiler> Validation<'_, C> {
    fn issuer(&mut self, issuer: &str) {
        const FIELD: &str = "issuer.url";
        if issuer.is_empty() {
            return self.errors.push(FieldError::required(FIELD, ""));
        }
        let url = match parse(issuer) {
            Ok(url) => url,
            Err(error) => return self.errors.push(FieldError::invalid(FIELD, issuer, error.to_string())),
        };
        for (is_wrong, detail) in [
            (url.scheme != "https", "URL scheme must be https"),
            (url.user.is_some(), "URL must not contain a username or password"),
            (!url.query.is_empty(), "URL must not contain a query"),
            (!url.fragment.is_empty(), "URL must not contain a fragment"),
        ] {
            if is_wrong {
                self.errors.push(FieldError::invalid(FIELD, issuer, detail));
            }
        }
    }

    fn audience(&mut self, audience: &str) {
        if audience.is_empty() {
            // Upstream does not rewrite the path in this detail.
            let detail = "at least one jwt[0].issuer.audiences is required";
            self.errors.push(FieldError::required("issuer.audiences", detail));
        }
    }

    fn claim_rules(&mut self, rules: &[ClaimValidationRule]) -> (Vec<RequiredClaim>, Vec<Rule<C::Program>>) {
        let (mut claims, mut expressions) = (HashSet::new(), HashSet::new());
        let (mut required, mut compiled) = (Vec::new(), Vec::new());
        for (at, rule) in rules.iter().enumerate() {
            let field = format!("claimValidationRules[{at}]");
            let ClaimValidationRule { claim, required_value, expression, message } = rule;
            match (claim.is_empty(), expression.is_empty()) {
                (false, false) => self.errors.push(FieldError::invalid(field, claim, BOTH)),
                (true, true) => self.errors.push(FieldError::required(field, NEITHER)),
                (false, true) => {
                    if !message.is_empty() {
                        let detail = "may not be specified when claim is set";
                        self.errors.push(FieldError::invalid(format!("{field}.message"), message, detail));
                    }
                    if claims.insert(claim) {
                        required.push(RequiredClaim { claim: claim.clone(), value: required_value.clone() });
                    } else {
                        self.errors.push(FieldError::duplicate(format!("{field}.claim"), claim));
                    }
                }
                (true, false) => {
                    if !required_value.is_empty() {
                        let field = format!("{field}.requiredValue");
                        let detail = "may not be specified when expression is set";
                        self.errors.push(FieldError::invalid(field, required_value, detail));
                    }
                    let field = format!("{field}.expression");
                    if !expressions.insert(expression) {
                        self.errors.push(FieldError::duplicate(field, expression));
                    } else if let Some(expression) = self.rule(&field, expression, Variable::Claims) {
                        self.note_email_verified(&expression);
                        compiled.push(Rule { expression, message: message.clone() });
                    }
                }
            }
        }
        (required, compiled)
    }

    fn username(&mut self, claims: &JwtTokenClaims) -> Option<Source<C::Program>> {
        let source = self.source("claims.username", &claims.username, &claims.username_expression);
        match source {
            Some(Source::Expression(expression)) => {
                self.uses_email |= expression.program.selects_claim("email");
                self.note_email_verified(&expression);
                Some(Source::Expression(expression))
            }
            Some(Source::Claim(claim)) if claim.is_empty() => {
                Some(Source::Claim(DEFAULT_USERNAME_CLAIM.to_owned()))
            }
            source => source,
        }
    }

    fn groups(&mut self, claims: &JwtTokenClaims) -> Option<Source<C::Program>> {
        match self.source("claims.groups", &claims.groups, &claims.groups_expression) {
            Some(Source::Claim(claim)) if claim.is_empty() => {
                Some(Source::Claim(DEFAULT_GROUPS_CLAIM.to_owned()))
            }
            source => source,
        }
    }

    /// Returns the source of an attribute; a claim without a name if the default applies.
    fn source(&mut self, field: &str, claim: &str, expression: &str) -> Option<Source<C::Program>> {
        match (claim.is_empty(), expression.is_empty()) {
            (false, false) => {
                self.errors.push(FieldError::invalid(field, "", BOTH));
                None
            }
            (_, true) => Some(Source::Claim(claim.to_owned())),
            (true, false) => self
                .compile(&format!("{field}Expression"), expression, Variable::Claims)
                .map(Source::Expression),
        }
    }

    fn extra(&mut self, mappings: &[ExtraMapping]) -> Vec<Extra<C::Program>> {
        let mut keys = HashSet::new();
        let mut compiled = Vec::new();
        for (at, ExtraMapping { key, value_expression }) in mappings.iter().enumerate() {
            let field = format!("claims.extra[{at}].key");
            let texts = domain_prefixed_path_errors(key);
            self.errors.extend(texts.into_iter().map(|text| FieldError::text(field.as_str(), text)));
            if *key != key.to_lowercase() {
                self.errors.push(FieldError::invalid(field.as_str(), key, "must be lowercase"));
            }
            if is_reserved_extra_key(key) {
                self.errors.push(FieldError::invalid(field.as_str(), key, RESERVED_KEY));
            }
            if !keys.insert(key) {
                self.errors.push(FieldError::duplicate(field, key));
                continue;
            }
            let field = format!("claims.extra[{at}].valueExpression");
            if value_expression.is_empty() {
                self.errors.push(FieldError::required(field, ""));
            } else if let Some(value) = self.compile(&field, value_expression, Variable::Claims) {
                self.note_email_verified(&value);
                compiled.push(Extra { key: key.clone(), value });
            }
        }
        compiled
    }

    fn email(&mut self, username_expression: &str) {
        const FIELD: &str = "claims.usernameExpression";
        if self.uses_email && !self.uses_email_verified {
            let detail = format!(
                "claims.email_verified must be used in {FIELD} or claims.extra[*].valueExpression or \
                 claimValidationRules[*].expression when claims.email is used in {FIELD}"
            );
            self.errors.push(FieldError::invalid(FIELD, username_expression, detail));
        }
    }

    fn user_rules(&mut self, rules: &[UserValidationRule]) -> Vec<Rule<C::Program>> {
        let mut expressions = HashSet::new();
        let mut compiled = Vec::new();
        for (at, UserValidationRule { expression, message }) in rules.iter().enumerate() {
            let field = format!("userValidationRules[{at}].expression");
            if expression.is_empty() {
                self.errors.push(FieldError::required(field, ""));
            } else if !expressions.insert(expression) {
                self.errors.push(FieldError::duplicate(field, expression));
            } else if let Some(expression) = self.rule(&field, expression, Variable::User) {
                compiled.push(Rule { expression, message: message.clone() });
            }
        }
        compiled
    }

    /// The part before `=` is the key when attributes are read from a certificate.
    fn equals_signs(&mut self, mappings: &[ExtraMapping]) {
        for (at, mapping) in mappings.iter().enumerate().filter(|(_, mapping)| mapping.key.contains('=')) {
            self.errors.push(FieldError::invalid(
                format!("claims.extra[{at}].key"),
                &mapping.key,
                EQUALS_SIGN_IN_KEY,
            ));
        }
    }

    fn rule(&mut self, field: &str, text: &str, variable: Variable) -> Option<Expression<C::Program>> {
        let compiled = self.compiler.compile(text, variable);
        // Upstream checks the type before anything that can fail with an internal error.
        let is_bool = match &compiled {
            Ok(program) => program.is_bool(),
            Err(CompileFailure::Internal { is_bool, .. }) => *is_bool,
            Err(CompileFailure::Invalid(_)) => true,
        };
        if !is_bool {
            self.errors.push(FieldError::invalid(field, text, "must evaluate to bool"));
            return None;
        }
        self.report(field, text, compiled)
    }

    fn compile(&mut self, field: &str, text: &str, variable: Variable) -> Option<Expression<C::Program>> {
        let compiled = self.compiler.compile(text, variable);
        self.report(field, text, compiled)
    }

    /// Returns the expression, or reports why it cannot be compiled.
    fn report(
        &mut self,
        field: &str,
        text: &str,
        compiled: Result<C::Program, CompileFailure>,
    ) -> Option<Expression<C::Program>> {
        match compiled {
            Ok(program) => Some(Expression { text: text.to_owned(), program }),
            Err(failure) => {
                self.errors.push(match failure {
                    CompileFailure::Invalid(detail) => FieldError::invalid(field, text, detail.as_str()),
                    CompileFailure::Internal { detail, .. } => FieldError::internal(field, detail.as_str()),
                });
                None
            }
        }
    }

    fn note_email_verified(&mut self, expression: &Expression<C::Program>) {
        self.uses_email_verified |= expression.program.selects_claim("email_verified");
    }
}

const BOTH: &str = "claim and expression can't both be set";
const NEITHER: &str = "claim or expression is required";

#[cfg(test)]
mod tests;
