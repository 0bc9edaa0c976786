//! IP addresses, as Go's `net/netip` parses them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pinniped_go_compat::json::quote;

use super::{Function, bool, no_overload, opaque};
use crate::error::EvaluationError;
use crate::interpreter::Evaluation;
use crate::value::{OpaqueValue, Value};

/// An IP address without a zone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ip(pub(super) IpAddr);

impl Ip {
    /// Returns the size in bytes.
    pub(crate) fn octets(self) -> usize {
        match self.0 {
            IpAddr::V4(_) => 4,
            IpAddr::V6(_) => 16,
        }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub(crate) fn function(name: &str) -> Option<Function> {
    Some(match name {
        "ip" => |_, arguments| match arguments {
            [Value::String(text)] => parse(text).map(|ip| OpaqueValue::Ip(ip).into()),
            [value] => match opaque(value) {
                Some(OpaqueValue::Cidr(cidr)) => Ok(OpaqueValue::Ip(cidr.ip()).into()),
                _ => Err(no_overload("ip", arguments)),
            },
            _ => Err(no_overload("ip", arguments)),
        },
        "isIP" => |_, arguments| match arguments {
            [Value::String(text)] => bool(parse(text).is_ok()),
            _ => Err(no_overload("isIP", arguments)),
        },
        "ip.isCanonical" => |_, arguments| match arguments {
            [Value::String(text)] => parse(text).and_then(|ip| bool(ip.to_string() == **text)),
            _ => Err(no_overload("ip.isCanonical", arguments)),
        },
        "family" => |_, arguments| of("family", arguments, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => {
            |_, arguments| of("isUnspecified", arguments, |ip| Value::Bool(ip.is_unspecified()))
        }
        "isLoopback" => |_, arguments| of("isLoopback", arguments, |ip| Value::Bool(ip.is_loopback())),
        "isLinkLocalMulticast" => |_, arguments| {
            of("isLinkLocalMulticast", arguments, |ip| {
                Value::Bool(match ip {
                    IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
                    IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
                })
            })
        },
        "isLinkLocalUnicast" => {
            |_, arguments| of("isLinkLocalUnicast", arguments, |ip| Value::Bool(is_link_local(ip)))
        }
        "isGlobalUnicast" => |_, arguments| {
            of("isGlobalUnicast", arguments, |ip| {
                let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
                let special = broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
                Value::Bool(!special && !is_link_local(ip))
            })
        },
        _ => return None,
    })
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn of(name: &str, arguments: &[Value], f: fn(IpAddr) -> Value) -> Evaluation {
    match arguments {
        [value] if let Some(OpaqueValue::Ip(Ip(ip))) = opaque(value) => Ok(f(*ip)),
        _ => Err(no_overload(name, arguments)),
    }
}

/// Parses an address. Zones and IPv4-mapped addresses are refused.
pub(crate) fn parse(text: &str) -> Result<Ip, EvaluationError> {
    let quoted = quote(text);
    let ip = parse_address(text).map_err(|reason| {
        let reason = format!("ParseAddr({quoted}): {reason}");
        EvaluationError::failed(format!(
            "IP Address {quoted} parse error during conversion from string: {reason}"
        ))
    })?;
    if text.contains('%') {
        let text = format!("IP address {quoted} with zone value is not allowed");
        return Err(EvaluationError::failed(text));
    }
    if is_mapped(ip) {
        let text = format!("IPv4-mapped IPv6 address {quoted} is not allowed");
        return Err(EvaluationError::failed(text));
    }
    Ok(Ip(ip))
}

pub(super) fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some())
}

/// Parses an address with Go's error texts. A zone is dropped.
pub(super) fn parse_address(text: &str) -> Result<IpAddr, String> {
    match text.find(['.', ':', '%']).map(|index| text.as_bytes()[index]) {
        Some(b'.') => parse_v4(text).map(IpAddr::V4),
        Some(b':') => {
            let (address, zone) =
                text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
            if zone == Some("") {
                return Err("zone must be a non-empty string".into());
            }
            address.parse::<Ipv6Addr>().map(IpAddr::V6).map_err(|_| v6_reason(address))
        }
        Some(_) => Err("missing IPv6 address".into()),
        None => Err("unable to parse IP".into()),
    }
}

fn parse_v4(text: &str) -> Result<Ipv4Addr, String> {
    let mut octets = Vec::new();
    let (mut value, mut digits) = (0_u32, 0);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => {
                if digits == 1 && value == 0 {
                    return Err("IPv4 field has octet with leading zero".into());
                }
                value = value * 10 + u32::from(byte - b'0');
                digits += 1;
                if value > 255 {
                    return Err("IPv4 field has value >255".into());
                }
            }
            b'.' => {
                if digits == 0 || index + 1 == text.len() {
                    let at = quote(&text[index..]);
                    return Err(format!("IPv4 field must have at least one digit (at {at})"));
                }
                if octets.len() == 3 {
                    return Err("IPv4 address too long".into());
                }
                octets.push(value);
                (value, digits) = (0, 0);
            }
            _ => return Err(format!("unexpected character (at {})", quote(text.get(index..).unwrap_or("")))),
        }
    }
    if octets.len() < 3 {
        return Err("IPv4 address too short".into());
    }
    octets.push(value);
    let octet = |index: usize| u8::try_from(octets[index]).unwrap_or(0);
    Ok(Ipv4Addr::new(octet(0), octet(1), octet(2), octet(3)))
}

/// Returns the likely reason for which an IPv6 address is not valid.
fn v6_reason(address: &str) -> String {
    let invalid = address.find(|c: char| !c.is_ascii_hexdigit() && !matches!(c, ':' | '.'));
    if let Some(index) = invalid {
        if index == 0 || address[..index].ends_with(':') {
            let at = quote(&address[index..]);
            return format!("each colon-separated field must have at least one digit (at {at})");
        }
        return format!("unexpected character, want colon (at {})", quote(&address[index..]));
    }
    if let Some(first) = address.find("::")
        && let Some(second) = address[first + 2..].find("::")
    {
        return format!("multiple :: in address (at {})", quote(&address[first + 2 + second + 1..]));
    }
    "address string too short".into()
}
