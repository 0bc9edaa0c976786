//! The bytes of a session in a pod, as its recording reads them. Input: the protocol (even is SPDY,
//! odd is a WebSocket), the size of the pieces in which the bytes arrive, then chunks: a byte whose
//! highest bit is the direction and whose other bits are the length, and the bytes.

use std::time::Duration;

use http::HeaderMap;
use pinniped_reverse_proxy::Direction;
use pinniped_session_recording::cast::{Cast, Header, SessionMetadata};
use pinniped_session_recording::streams::{Stream, Streams, Upgrade};
use serde_json::Value;

/// Checks one input; see the module.
pub fn check(data: &[u8]) {
    let [protocol, part, rest @ ..] = data else { return };
    let upgrade = if protocol % 2 == 0 { Upgrade::Spdy } else { Upgrade::WebSocket };
    let chunks = chunks(rest);
    let whole = read(upgrade, &chunks, usize::MAX);
    assert_eq!(read(upgrade, &chunks, usize::from(*part).max(1)), whole, "in parts of {part}");
}

fn chunks(mut rest: &[u8]) -> Vec<(Direction, &[u8])> {
    let mut chunks = Vec::new();
    while let Some((head, after)) = rest.split_first() {
        let direction = if head & 0x80 == 0 { Direction::FromClient } else { Direction::ToClient };
        let (chunk, after) = after.split_at(after.len().min(usize::from(head & 0x7f)));
        chunks.push((direction, chunk));
        rest = after;
    }
    chunks
}

/// The text of each stream, and whether all bytes could be read.
type Read = ([Vec<u8>; 5], bool);

fn read(upgrade: Upgrade, chunks: &[(Direction, &[u8])], part: usize) -> Read {
    let mut streams = Streams::agreed(upgrade, &HeaderMap::new()).expect("a protocol that is recorded");
    let mut cast = Cast::new(header());
    let (mut texts, mut is_read) = (<[Vec<u8>; 5]>::default(), true);
    let mut sent = 0;
    'all: for (direction, chunk) in chunks {
        for part in chunk.chunks(part) {
            sent += part.len();
            let result = streams.read(*direction, part, &mut |stream, text| {
                assert_eq!(stream.direction(), *direction);
                texts[index(stream)].extend_from_slice(text);
                cast.part(Duration::from_millis(sent as u64), stream, text);
            });
            if result.is_err() {
                is_read = false;
                break 'all;
            }
        }
    }
    assert!(texts.iter().map(Vec::len).sum::<usize>() <= sent, "no text is invented");
    cast.end(Duration::from_secs(1));
    let lines = String::from_utf8(cast.take_lines()).expect("text");
    for (at, line) in lines.lines().enumerate() {
        let line: Value = serde_json::from_str(line).expect("each line is JSON");
        assert_eq!(line.is_object(), at == 0);
    }
    if is_read && streams.rest_of_server_frame() == 0 {
        // The end of a session can be read by the client.
        let closing_frames = streams.closing_frames("the end");
        let mut found = Vec::new();
        let result = streams.read(Direction::ToClient, &closing_frames, &mut |stream, text| {
            assert_eq!(stream, Stream::Error);
            found.extend_from_slice(text);
        });
        assert!(result.is_ok() && (closing_frames.is_empty() || found.ends_with(b"the end")));
    }
    (texts, is_read)
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdin => 0,
        Stream::Stdout => 1,
        Stream::Stderr => 2,
        Stream::Error => 3,
        Stream::Resize => 4,
    }
}

fn header() -> Header {
    let (title, command) = (String::new(), String::new());
    Header { timestamp: 0, title, command, kubernetes: SessionMetadata::default() }
}
