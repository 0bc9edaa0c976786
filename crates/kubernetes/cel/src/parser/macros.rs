//! Macros: calls that the parser replaces by loops and other expressions.

use std::sync::Arc;

use super::Parser;
use crate::ast::{Comprehension, Element, Expr, Id, Literal};

/// The variable that holds the result of a loop. No expression can name it.
pub(crate) const ACCUMULATOR: &str = "@result";
/// The name that older versions of cel-go used for it.
const OLD_ACCUMULATOR: &str = "__result__";

/// An error of a macro: the node that causes it, and the message.
type Error = (Id, String);

impl Parser<'_> {
    /// Expands a call if it is one of a macro. Returns `None` for other calls.
    pub(super) fn expand_macro(
        &mut self,
        offset: u32,
        name: &str,
        target: Option<Id>,
        arguments: &[Id],
    ) -> Option<Id> {
        let mut expansion = Expansion { parser: self, offset };
        let expanded = match (name, target, arguments) {
            ("has", None, [of]) => expansion.has(*of),
            ("all" | "exists" | "exists_one", Some(range), [v, test]) => {
                expansion.simple_variable(*v).map(|v| expansion.quantifier(name, range, (v, None), *test))
            }
            ("all" | "exists" | "exists_one" | "existsOne", Some(range), [v, w, test]) => {
                expansion.two_variables(*v, *w).map(|(v, w)| {
                    let name = if name == "existsOne" { "exists_one" } else { name };
                    expansion.quantifier(name, range, (v, Some(w)), *test)
                })
            }
            ("map", Some(range), [v, to]) => expansion.map(range, *v, None, *to),
            ("map", Some(range), [v, filter, to]) => expansion.map(range, *v, Some(*filter), *to),
            ("filter", Some(range), [v, filter]) => expansion.map(range, *v, Some(*filter), *v),
            ("transformList" | "transformMap" | "transformMapEntry", Some(range), [v, w, to]) => {
                expansion.transform(name, range, (*v, *w), None, *to)
            }
            ("transformList" | "transformMap" | "transformMapEntry", Some(range), [v, w, filter, to]) => {
                expansion.transform(name, range, (*v, *w), Some(*filter), *to)
            }
            ("optMap" | "optFlatMap", Some(optional), [v, to]) => {
                expansion.optional_map(name, optional, *v, *to)
            }
            ("sortBy", Some(list), [v, key]) => expansion.sort_by(list, *v, *key)?,
            _ => return None,
        };
        Some(expanded.unwrap_or_else(|(id, message)| {
            let offset = self.ast.offset(id);
            self.report_later(offset, message);
            self.add(offset, Expr::Invalid)
        }))
    }
}

struct Expansion<'p, 's> {
    parser: &'p mut Parser<'s>,
    /// The position of the call, which is that of all nodes of the expansion.
    offset: u32,
}

impl Expansion<'_, '_> {
    fn add(&mut self, expr: Expr) -> Id {
        self.parser.add(self.offset, expr)
    }

    fn call(&mut self, function: &str, arguments: Vec<Id>) -> Id {
        self.parser.call(self.offset, function, arguments)
    }

    fn member_call(&mut self, function: &str, target: Id, arguments: Vec<Id>) -> Id {
        self.add(Expr::Call { function: function.into(), target: Some(target), arguments })
    }

    fn bool(&mut self, value: bool) -> Id {
        self.add(Expr::Literal(Literal::Bool(value)))
    }

    fn int(&mut self, value: i64) -> Id {
        self.add(Expr::Literal(Literal::Int(value)))
    }

    fn ident(&mut self, name: &str) -> Id {
        self.add(Expr::Ident(name.into()))
    }

    fn accumulator(&mut self) -> Id {
        self.ident(ACCUMULATOR)
    }

    fn list(&mut self, element: Option<Id>) -> Id {
        let elements = element.map(|value| Element { value, optional: false });
        self.add(Expr::List(elements.into_iter().collect()))
    }

    /// Returns the name of a loop variable.
    fn variable(&self, id: Id, message: &str) -> Result<Arc<str>, Error> {
        let Expr::Ident(name) = self.parser.ast.expr(id) else {
            return Err((id, message.to_owned()));
        };
        if matches!(&**name, ACCUMULATOR | OLD_ACCUMULATOR) {
            return Err((id, "iteration variable overwrites accumulator variable".into()));
        }
        Ok(name.clone())
    }

    fn simple_variable(&self, id: Id) -> Result<Arc<str>, Error> {
        self.variable(id, "argument must be a simple name")
    }

    fn two_variables(&self, first: Id, second: Id) -> Result<(Arc<str>, Arc<str>), Error> {
        let name = |id: Id| match self.parser.ast.expr(id) {
            Expr::Ident(name) => Ok(name.clone()),
            _ => Err((id, "argument must be a simple name".to_owned())),
        };
        let (v, w) = (name(first)?, name(second)?);
        if v == w {
            return Err((second, format!("duplicate variable name: {v}")));
        }
        self.simple_variable(first)?;
        self.simple_variable(second)?;
        Ok((v, w))
    }

    fn has(&mut self, of: Id) -> Result<Id, Error> {
        match self.parser.ast.expr(of) {
            Expr::Select { operand, field, test: false } => {
                let (operand, field) = (*operand, field.clone());
                Ok(self.add(Expr::Select { operand, field, test: true }))
            }
            _ => Err((of, "invalid argument to has() macro".into())),
        }
    }

    fn quantifier(
        &mut self,
        name: &str,
        range: Id,
        (variable, second_variable): (Arc<str>, Option<Arc<str>>),
        test: Id,
    ) -> Id {
        let (initial, condition, step, result);
        match name {
            "all" => {
                initial = self.bool(true);
                let so_far = self.accumulator();
                condition = self.call("@not_strictly_false", vec![so_far]);
                let so_far = self.accumulator();
                step = self.call("_&&_", vec![so_far, test]);
                result = self.accumulator();
            }
            "exists" => {
                initial = self.bool(false);
                let so_far = self.accumulator();
                let not = self.call("!_", vec![so_far]);
                condition = self.call("@not_strictly_false", vec![not]);
                let so_far = self.accumulator();
                step = self.call("_||_", vec![so_far, test]);
                result = self.accumulator();
            }
            _ => {
                initial = self.int(0);
                condition = self.bool(true);
                let (count, one) = (self.accumulator(), self.int(1));
                let next = self.call("_+_", vec![count, one]);
                let same = self.accumulator();
                step = self.call("_?_:_", vec![test, next, same]);
                let (count, one) = (self.accumulator(), self.int(1));
                result = self.call("_==_", vec![count, one]);
            }
        }
        self.comprehension(range, variable, second_variable, initial, condition, step, result)
    }

    fn map(&mut self, range: Id, variable: Id, filter: Option<Id>, to: Id) -> Result<Id, Error> {
        let name = self.variable(variable, "argument is not an identifier")?;
        let step = self.append(to, filter);
        Ok(self.collect(range, name, None, step))
    }

    /// Returns the step that appends a value to the accumulated list, if the filter holds.
    fn append(&mut self, value: Id, filter: Option<Id>) -> Id {
        let (so_far, value) = (self.accumulator(), self.list(Some(value)));
        let step = self.call("_+_", vec![so_far, value]);
        self.filtered(step, filter)
    }

    fn filtered(&mut self, step: Id, filter: Option<Id>) -> Id {
        match filter {
            Some(filter) => {
                let same = self.accumulator();
                self.call("_?_:_", vec![filter, step, same])
            }
            None => step,
        }
    }

    fn collect(&mut self, range: Id, variable: Arc<str>, second: Option<Arc<str>>, step: Id) -> Id {
        let initial = self.list(None);
        let (condition, result) = (self.bool(true), self.accumulator());
        self.comprehension(range, variable, second, initial, condition, step, result)
    }

    fn transform(
        &mut self,
        name: &str,
        range: Id,
        variables: (Id, Id),
        filter: Option<Id>,
        to: Id,
    ) -> Result<Id, Error> {
        let (v, w) = self.two_variables(variables.0, variables.1)?;
        if name == "transformList" {
            let step = self.append(to, filter);
            return Ok(self.collect(range, v, Some(w), step));
        }
        let mut arguments = vec![self.accumulator()];
        if name == "transformMap" {
            arguments.push(self.ident(&v));
        }
        arguments.push(to);
        let step = self.call("cel.@mapInsert", arguments);
        let step = self.filtered(step, filter);
        let initial = self.add(Expr::Map(Vec::new()));
        let (condition, result) = (self.bool(true), self.accumulator());
        Ok(self.comprehension(range, v, Some(w), initial, condition, step, result))
    }

    /// Expands `optional.optMap(v, to)`: binds the value to `v` if there is one.
    fn optional_map(&mut self, name: &str, optional: Id, v: Id, to: Id) -> Result<Id, Error> {
        let message = format!("{name}() variable name must be a simple identifier");
        let Expr::Ident(variable) = self.parser.ast.expr(v) else { return Err((v, message)) };
        let variable = variable.clone();
        let test = self.member_call("hasValue", optional, Vec::new());
        let value = self.member_call("value", optional, Vec::new());
        let (range, condition) = (self.list(None), self.bool(false));
        let step = self.ident(&variable);
        let unused = Arc::from("#unused");
        let bound = Expr::Comprehension(Box::new(Comprehension {
            range,
            variable: unused,
            second_variable: None,
            accumulator: variable,
            initial: value,
            condition,
            step,
            result: to,
        }));
        let mut some = self.add(bound);
        if name == "optMap" {
            some = self.call("optional.of", vec![some]);
        }
        let none = self.call("optional.none", Vec::new());
        Ok(self.call("_?_:_", vec![test, some, none]))
    }

    /// Expands `list.sortBy(v, key)`. Returns `None` if the target is not a list by its form.
    fn sort_by(&mut self, list: Id, v: Id, key: Id) -> Option<Result<Id, Error>> {
        let allowed = matches!(
            self.parser.ast.expr(list),
            Expr::Select { .. } | Expr::List(_) | Expr::Comprehension(_) | Expr::Ident(_) | Expr::Call { .. }
        );
        if !allowed {
            let message =
                "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Some(Err((list, message.into())));
        }
        let unused: Arc<str> = "#unused".into();
        let input: Arc<str> = "@__sortBy_input__".into();
        let target = self.ident(&input);
        let keys = match self.map(target, v, None, key) {
            Ok(keys) => keys,
            Err(error) => return Some(Err(error)),
        };
        let target = self.ident(&input);
        let sorted = self.member_call("@sortByAssociatedKeys", target, vec![keys]);
        let (range, condition) = (self.list(None), self.bool(false));
        let step = self.ident(&input);
        Some(Ok(self.add(Expr::Comprehension(Box::new(Comprehension {
            range,
            variable: unused,
            second_variable: None,
            accumulator: input,
            initial: list,
            condition,
            step,
            result: sorted,
        })))))
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a loop, in the order of evaluation")]
    fn comprehension(
        &mut self,
        range: Id,
        variable: Arc<str>,
        second_variable: Option<Arc<str>>,
        initial: Id,
        condition: Id,
        step: Id,
        result: Id,
    ) -> Id {
        let accumulator = ACCUMULATOR.into();
        let parts =
            Comprehension { range, variable, second_variable, accumulator, initial, condition, step, result };
        self.add(Expr::Comprehension(Box::new(parts)))
    }
}
