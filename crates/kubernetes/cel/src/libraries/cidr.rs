//! Networks: an address and the length of its prefix.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use pinniped_go_compat::json::quote;

use super::ip::{self, Ip};
use super::{Function, bool, no_overload, opaque};
use crate::error::EvaluationError;
use crate::value::{OpaqueValue, Value};

/// A network. The address can have bits after the prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cidr(IpNet);

impl Cidr {
    pub(crate) fn ip(self) -> Ip {
        Ip(self.0.addr())
    }

    /// Returns the size that costs depend on: the bytes of the prefix, rounded up.
    pub(crate) fn size(self) -> usize {
        usize::from(self.0.prefix_len()).div_ceil(8)
    }

    fn contains(self, ip: IpAddr) -> bool {
        self.0.trunc().contains(&ip)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.addr(), self.0.prefix_len())
    }
}

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "cidr" => |_, arguments| match arguments {
            [Value::String(text)] => parse(text).map(|cidr| OpaqueValue::Cidr(cidr).into()),
            _ => Err(no_overload("cidr", arguments)),
        },
        "isCIDR" => |_, arguments| match arguments {
            [Value::String(text)] => bool(parse(text).is_ok()),
            _ => Err(no_overload("isCIDR", arguments)),
        },
        "containsIP" => |_, arguments| match target(arguments) {
            Some((cidr, [Value::String(text)])) => {
                let ip = ip::parse(text).map_err(|_| EvaluationError::no_overload())?;
                bool(cidr.contains(ip.0))
            }
            Some((cidr, [value])) => match opaque(value) {
                Some(OpaqueValue::Ip(ip)) => bool(cidr.contains(ip.0)),
                _ => Err(no_overload("containsIP", arguments)),
            },
            _ => Err(no_overload("containsIP", arguments)),
        },
        "containsCIDR" => |_, arguments| match target(arguments) {
            Some((cidr, [Value::String(text)])) => bool(contains_network(cidr, parse(text)?)),
            Some((cidr, [value])) => match opaque(value) {
                Some(OpaqueValue::Cidr(other)) => bool(contains_network(cidr, *other)),
                _ => Err(no_overload("containsCIDR", arguments)),
            },
            _ => Err(no_overload("containsCIDR", arguments)),
        },
        "masked" => |_, arguments| match target(arguments) {
            Some((Cidr(network), [])) => Ok(OpaqueValue::Cidr(Cidr(network.trunc())).into()),
            _ => Err(no_overload("masked", arguments)),
        },
        "prefixLength" => |_, arguments| match target(arguments) {
            Some((Cidr(network), [])) => Ok(Value::Int(i64::from(network.prefix_len()))),
            _ => Err(no_overload("prefixLength", arguments)),
        },
        _ => return None,
    })
}

fn target(arguments: &[Value]) -> Option<(Cidr, &[Value])> {
    let (first, rest) = arguments.split_first()?;
    match opaque(first) {
        Some(OpaqueValue::Cidr(cidr)) => Some((*cidr, rest)),
        _ => None,
    }
}

fn contains_network(cidr: Cidr, other: Cidr) -> bool {
    cidr.0.prefix_len() <= other.0.prefix_len() && cidr.contains(other.0.addr())
}

fn parse(text: &str) -> Result<Cidr, EvaluationError> {
    parse_prefix(text).map(Cidr).map_err(|reason| {
        let conversion = "network address parse error during conversion from string";
        EvaluationError::failed(format!("{conversion}: {reason}"))
    })
}

/// Parses a network with Go's error texts.
fn parse_prefix(text: &str) -> Result<IpNet, String> {
    let quoted = quote(text);
    let refused = |reason: String| {
        let conversion = "network address parse error during conversion from string";
        Err(format!("{conversion}: netip.ParsePrefix({quoted}): {reason}"))
    };
    let Some((address, bits)) = text.rsplit_once('/') else { return refused("no '/'".into()) };
    let ip = match ip::parse_address(address) {
        Ok(ip) => ip,
        Err(reason) => return refused(format!("ParseAddr({}): {reason}", quote(address))),
    };
    if address.contains('%') {
        return refused("IPv6 zones cannot be present in a prefix".into());
    }
    let valid = !bits.is_empty()
        && bits.bytes().all(|byte| byte.is_ascii_digit())
        && (bits.len() == 1 || !bits.starts_with('0'));
    if !valid {
        return refused(format!("bad bits after slash: {}", quote(bits)));
    }
    let network = bits.parse().ok().and_then(|bits| IpNet::new(ip, bits).ok());
    let Some(network) = network else { return refused("prefix length out of range".into()) };
    if ip::is_mapped(ip) {
        return Err(format!("IPv4-mapped IPv6 address {quoted} is not allowed"));
    }
    Ok(network)
}
