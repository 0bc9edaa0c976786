//! The envelope of Kubernetes protobuf, as the aggregated API reads it from a request body. Input:
//! the body.

use pinniped_kube_types::protobuf::{DecodeError, Envelope, MAGIC, Message};

/// A field that the envelope does not have: number 5, four bytes.
const UNKNOWN_FIELD: [u8; 5] = [0x2d, 1, 2, 3, 4];

/// Checks one input; see the module.
pub fn check(body: &[u8]) {
    let followed = [body, &UNKNOWN_FIELD].concat();
    match Envelope::decode(body) {
        Ok(envelope) => {
            let known = envelope.api_version.len().max(envelope.kind.len()).max(envelope.raw.len());
            assert!(known <= body.len() - MAGIC.len());
            // A field that is not known has no effect, wherever it is.
            assert_eq!(Envelope::decode(&followed), Ok(envelope));
            let preceded = [&MAGIC[..], &UNKNOWN_FIELD, &body[MAGIC.len()..]].concat();
            assert_eq!(Envelope::decode(&preceded), Ok(envelope));

            let mut type_meta = Message::default();
            type_meta.bytes(1, envelope.api_version).bytes(2, envelope.kind);
            let mut unknown = Message::default();
            unknown.message(1, &type_meta).bytes(2, envelope.raw);
            let written = [&MAGIC[..], unknown.as_bytes()].concat();
            assert_eq!(Envelope::decode(&written), Ok(envelope));
        }
        Err(error) => {
            // An error quotes nothing of the body but a number.
            assert!(error.to_string().len() < 150, "{error}");
            let is_incomplete = matches!(
                error,
                DecodeError::UnexpectedEnd | DecodeError::NoData | DecodeError::NoBody | DecodeError::NoMagic
            );
            if !is_incomplete {
                assert_eq!(Envelope::decode(&followed), Err(error), "the rest of the body was read first");
            }
        }
    }
}
