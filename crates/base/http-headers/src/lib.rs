//! Header fields of requests and responses that pass through a proxy.
//!
//! [`hop_by_hop`] removes hop-by-hop header fields (RFC 9110, section 7.6.1); [`precomputed`]
//! contains header fields that are serialized once and added to many requests.
//!
//! ```
//! use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue};
//! use pinniped_http_headers::hop_by_hop;
//! use pinniped_http_headers::precomputed::PrecomputedHeaders;
//!
//! let mut headers = HeaderMap::new();
//! headers.insert(CONNECTION, HeaderValue::from_static("close, x-only-here"));
//! headers.insert("x-only-here", HeaderValue::from_static("1"));
//! headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
//! hop_by_hop::strip_request(&mut headers);
//! assert_eq!(headers.len(), 1);
//!
//! let token = HeaderValue::from_static("Bearer example");
//! let login = PrecomputedHeaders::new(vec![(AUTHORIZATION, token)]);
//! assert_eq!(login.as_http1(), b"authorization: Bearer example\r\n");
//! login.append_to(&mut headers).unwrap();
//! assert!(headers.contains_key(AUTHORIZATION));
//! ```

#![forbid(unsafe_code)]

pub mod hop_by_hop;
pub mod precomputed;
