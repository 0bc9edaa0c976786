//! The tree of an expression. Nodes are in one vector and refer to each other by index, so that a
//! deep tree is released without recursion.

use std::sync::Arc;

/// The index of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Id(u32);

impl Id {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A constant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
}

/// An element of a list, a value of a map or of an object's field. It can be optional: `?x`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element {
    pub(crate) value: Id,
    pub(crate) optional: bool,
}

/// An expression.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    /// Stands for an expression that could not be parsed.
    Invalid,
    Literal(Literal),
    Ident(Arc<str>),
    /// Field selection, or the test of `has()`.
    Select {
        operand: Id,
        field: Arc<str>,
        test: bool,
    },
    Call {
        function: Arc<str>,
        target: Option<Id>,
        arguments: Vec<Id>,
    },
    List(Vec<Element>),
    Map(Vec<(Id, Element)>),
    /// The creation of an object. Each field has its offset in the source.
    Object {
        name: Arc<str>,
        fields: Vec<(Arc<str>, Element, u32)>,
    },
    Comprehension(Box<Comprehension>),
}

/// A loop over a list or a map, which macros such as `all` expand to.
#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub(crate) range: Id,
    pub(crate) variable: Arc<str>,
    /// The second variable: the element of a list, or the value of a map's entry.
    pub(crate) second_variable: Option<Arc<str>>,
    pub(crate) accumulator: Arc<str>,
    pub(crate) initial: Id,
    pub(crate) condition: Id,
    pub(crate) step: Id,
    pub(crate) result: Id,
}

/// A tree.
#[derive(Debug, Default)]
pub(crate) struct Ast {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    expr: Expr,
    offset: u32,
    /// The length of the longest path to a leaf.
    depth: u32,
}

impl Ast {
    pub(crate) fn add(&mut self, offset: u32, expr: Expr) -> Id {
        let id = Id(crate::source::offset(self.nodes.len()));
        let mut depth = 0;
        for_each_child(&expr, |child| depth = depth.max(self.nodes[child.index()].depth + 1));
        self.nodes.push(Node { expr, offset, depth });
        id
    }

    pub(crate) fn expr(&self, id: Id) -> &Expr {
        &self.nodes[id.index()].expr
    }

    pub(crate) fn replace(&mut self, id: Id, expr: Expr) {
        self.nodes[id.index()].expr = expr;
    }

    /// Returns the position of a node in the source, in code points.
    pub(crate) fn offset(&self, id: Id) -> u32 {
        self.nodes[id.index()].offset
    }

    pub(crate) fn depth(&self, id: Id) -> u32 {
        self.nodes[id.index()].depth
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the nodes of the tree below `root`, parents before children. A node that two others
    /// share occurs once.
    pub(crate) fn descendants(&self, root: Id) -> Vec<Id> {
        let mut seen = vec![false; self.nodes.len()];
        let mut found = Vec::new();
        let mut pending = vec![root];
        while let Some(id) = pending.pop() {
            if std::mem::replace(&mut seen[id.index()], true) {
                continue;
            }
            found.push(id);
            let start = pending.len();
            for_each_child(self.expr(id), |child| pending.push(child));
            pending[start..].reverse();
        }
        found
    }

    /// Returns the dotted name that a chain of selections on an identifier spells.
    pub(crate) fn qualified_name(&self, id: Id) -> Option<String> {
        let mut fields = Vec::new();
        let mut at = id;
        loop {
            match self.expr(at) {
                Expr::Ident(name) => {
                    fields.push(name);
                    break;
                }
                Expr::Select { operand, field, test: false } => {
                    fields.push(field);
                    at = *operand;
                }
                _ => return None,
            }
        }
        fields.reverse();
        Some(fields.iter().map(|field| &***field).collect::<Vec<&str>>().join("."))
    }
}

pub(crate) fn for_each_child(expr: &Expr, mut f: impl FnMut(Id)) {
    match expr {
        Expr::Invalid | Expr::Literal(_) | Expr::Ident(_) => {}
        Expr::Select { operand, .. } => f(*operand),
        Expr::Call { target, arguments, .. } => target.iter().chain(arguments).for_each(|id| f(*id)),
        Expr::List(elements) => elements.iter().for_each(|element| f(element.value)),
        Expr::Map(entries) => {
            for (key, element) in entries {
                f(*key);
                f(element.value);
            }
        }
        Expr::Object { fields, .. } => fields.iter().for_each(|(_, element, _)| f(element.value)),
        Expr::Comprehension(c) => {
            [c.range, c.initial, c.condition, c.step, c.result].into_iter().for_each(f);
        }
    }
}
