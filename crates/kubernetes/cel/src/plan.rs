//! Prepares the evaluation: values of constant expressions, regular expressions that are constant,
//! and functions of calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ast::{Expr, Id, Literal};
use crate::budget::{Budget, Usage};
use crate::checker::{Checked, Name};
use crate::error::EvaluationError;
use crate::libraries::regular_expression::{self, Limits, Literals};
use crate::libraries::{Function, function};
use crate::value::{Key, Map, OpaqueValue, Value};

/// The prepared parts of each node.
pub(crate) struct Plan {
    /// The values of constant expressions.
    pub(crate) constants: Vec<Option<Value>>,
    pub(crate) functions: Vec<Option<Function>>,
    /// The elements of constant lists that `in` searches.
    pub(crate) sets: Vec<Option<Arc<Map>>>,
    /// The constant regular expressions.
    pub(crate) literals: Arc<Literals>,
}

/// The functions whose call with a constant argument is a constant.
const CONVERSIONS: [&str; 10] =
    ["bool", "bytes", "double", "dyn", "duration", "int", "string", "timestamp", "type", "uint"];

impl Plan {
    /// Prepares a tree. Fails if a constant has no value.
    pub(crate) fn new(checked: &Checked) -> Result<Self, EvaluationError> {
        let count = checked.ast.len();
        let mut plan = Self {
            constants: vec![None; count],
            functions: vec![None; count],
            sets: vec![None; count],
            literals: Arc::default(),
        };
        let mut literals = Literals::new();
        let mut ids = checked.ast.descendants(checked.root);
        // Children were created before their parents.
        ids.sort();
        for id in ids {
            plan.constants[id.index()] = plan.constant(checked, id)?;
            if let Expr::Call { function: name, .. } = checked.ast.expr(id) {
                plan.functions[id.index()] = function(name);
                plan.sets[id.index()] = plan.set(checked, id);
                plan.compile_pattern(checked, id, &mut literals)?;
            }
        }
        plan.literals = Arc::new(literals);
        Ok(plan)
    }

    fn constant(&self, checked: &Checked, id: Id) -> Result<Option<Value>, EvaluationError> {
        let known = |id: &Id| self.constants[id.index()].clone();
        Ok(match checked.ast.expr(id) {
            Expr::Literal(literal) => Some(value(literal)),
            Expr::Ident(_) => match &checked.names[id.index()] {
                Some(Name::Type(ty)) => Some(OpaqueValue::Type(ty.clone()).into()),
                _ => None,
            },
            Expr::List(elements) => {
                let elements = elements.iter().filter(|element| !element.optional).map(|e| known(&e.value));
                let values: Option<Vec<Value>> = elements.collect();
                let complete = checked.ast.expr(id);
                match (complete, values) {
                    (Expr::List(all), Some(values)) if all.len() == values.len() => Some(Value::list(values)),
                    _ => None,
                }
            }
            Expr::Map(entries) => {
                let mut built = BTreeMap::new();
                for (key, element) in entries {
                    let (Some(key), Some(value), false) =
                        (known(key).as_ref().and_then(Key::new), known(&element.value), element.optional)
                    else {
                        return Ok(None);
                    };
                    built.insert(key, value);
                }
                Some(Value::Map(Map::built(built).into()))
            }
            Expr::Call { function: name, target: None, arguments } => {
                if let [argument] = &arguments[..]
                    && CONVERSIONS.contains(&&**name)
                    && let Some(argument) = known(argument)
                    && let Some(convert) = function(name)
                {
                    let mut usage = Usage::new(Budget::default(), Arc::default());
                    return convert(&mut usage, &[argument]).map(Some);
                }
                None
            }
            _ => None,
        })
    }

    /// Compiles the regular expression of a call if it is constant. It is the argument after the
    /// text, which can be the target.
    fn compile_pattern(
        &self,
        checked: &Checked,
        id: Id,
        literals: &mut Literals,
    ) -> Result<(), EvaluationError> {
        let Expr::Call { function, target, arguments } = checked.ast.expr(id) else { return Ok(()) };
        if !matches!(&**function, "matches" | "find" | "findAll") {
            return Ok(());
        }
        let Some(pattern) = target.iter().chain(arguments).nth(1) else { return Ok(()) };
        let Some(Value::String(text)) = &self.constants[pattern.index()] else { return Ok(()) };
        if !literals.contains_key(text) {
            let compiled = regular_expression::compile(text, &Limits::LITERAL);
            literals.insert(text.clone(), Arc::new(compiled.map_err(EvaluationError::failed)?));
        }
        Ok(())
    }

    /// Returns the elements of a constant list on the right of `in`, if they can be keys.
    fn set(&self, checked: &Checked, id: Id) -> Option<Arc<Map>> {
        if checked.overloads[id.index()] != Some("in_list") {
            return None;
        }
        let Expr::Call { arguments, .. } = checked.ast.expr(id) else { return None };
        let Some(Value::List(elements)) = &self.constants[arguments.get(1)?.index()] else { return None };
        let keys = elements.iter().map(|element| match element {
            Value::Null => None,
            other => Key::new(other).map(|key| (key, Value::Null)),
        });
        Some(Map::built(keys.collect::<Option<BTreeMap<Key, Value>>>()?).into())
    }
}

fn value(literal: &Literal) -> Value {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::String(text) => Value::String(text.clone()),
        Literal::Bytes(bytes) => Value::Bytes(bytes.clone()),
    }
}
