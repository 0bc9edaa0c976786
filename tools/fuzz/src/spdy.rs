//! The bytes of a SPDY/3.1 server, as the client of remote commands parses them. Input: the size of
//! the pieces in which the bytes arrive, then the bytes.

use pinniped_spdy::decode::{DecodeError, Decoder, Frame, LONGEST_HEAD};

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let Some((part, data)) = data.split_first() else { return };
    let whole = decode(data, data.len().max(1));
    assert_eq!(decode(data, usize::from(*part).max(1)), whole, "in parts of {part}");
}

/// The frames, the data of streams, and the final error. Pieces of one data frame are merged.
type Decoded = (Vec<Frame>, Vec<(u32, Vec<u8>)>, Option<DecodeError>);

fn decode(data: &[u8], part: usize) -> Decoded {
    let (mut decoder, mut frames, mut contents) =
        (Decoder::default(), Vec::new(), Vec::<(u32, Vec<u8>)>::new());
    let (mut start, mut end) = (0, 0);
    loop {
        let step = match decoder.decode(&data[start..end]) {
            Ok(step) => step,
            Err(error) => return (frames, contents, Some(error)),
        };
        assert!(step.consumed <= end - start, "no more is consumed than there is");
        let consumed = &data[start..start + step.consumed];
        start += step.consumed;
        match step.frame {
            None if step.consumed == 0 => {
                assert!(end - start < LONGEST_HEAD, "{} bytes without progress", end - start);
                if end == data.len() {
                    return (frames, contents, None);
                }
                end = data.len().min(end + part);
            }
            None => {}
            Some(frame @ Frame::Data { stream, last }) => {
                assert_ne!(stream, 0);
                match contents.last_mut() {
                    Some((before, content)) if *before == stream => content.extend(consumed),
                    _ => contents.push((stream, consumed.to_vec())),
                }
                if last {
                    frames.push(frame);
                }
            }
            Some(frame) => frames.push(frame),
        }
    }
}
