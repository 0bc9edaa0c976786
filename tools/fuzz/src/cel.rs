//! Expressions of the Common Expression Language over the claims of a token. Input: a line with the
//! claims as JSON, and the expression.
//!
//! A compiled expression ends within its budget, and gives the same result again. An error has no
//! empty text, and the `Debug` output of a value shows no text of the claims.

use pinniped_cel::{Budget, Environment, EvaluationError, Map, Type, Value, compile};

/// The cost that an evaluation may have. It is small, so that inputs run fast.
const COST: u64 = 20_000;
/// The mark of a text in the claims that must not be visible in `Debug` output.
const SECRET: &str = "secret-of-a-token";

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (claims, expression) = text.split_once('\n').unwrap_or(("{}", text));
    let claims: serde_json::Map<String, serde_json::Value> = serde_json::from_str(claims).unwrap_or_default();
    let environment = Environment::new().variable("claims", Type::map(Type::String, Type::Any));
    let program = match compile(&environment, expression) {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let _ = program.selects("claims", &["email"]);
    let fields = claims.iter().map(|(name, value)| (name.clone(), Value::from(value)));
    let secret = ("secret".to_owned(), Value::from(SECRET));
    let claims = Value::Map(Map::object("kubernetes.claims", fields.chain([secret])).into());
    let variables = [("claims", claims)];
    let budget = Budget::with_cost(COST);
    let (first, cost) = program.evaluate_with_cost(&variables, budget);
    let (second, again) = program.evaluate_with_cost(&variables, budget);
    assert_eq!(cost, again, "the cost is the same");
    match (first, second) {
        (Ok(first), Ok(second)) => assert_eq!(format!("{first:?}"), format!("{second:?}")),
        (Err(first), Err(second)) => {
            assert_eq!(first.to_string(), second.to_string());
            assert!(!format!("{first:?}").contains(SECRET));
        }
        (first, second) => panic!("two evaluations differ: {first:?} and {second:?}"),
    }
    if cost > COST {
        let (result, _) = program.evaluate_with_cost(&variables, budget);
        assert!(matches!(result, Err(EvaluationError::CostLimit | EvaluationError::SizeLimit)));
    }
}
