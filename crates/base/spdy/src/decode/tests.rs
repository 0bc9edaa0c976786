//! Tests with frames as servers send them, complete and in parts.

use super::*;

fn control(kind: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32 | u32::from(flags) << 24).to_be_bytes();
    [&[0x80, 3], &kind.to_be_bytes()[..], &length, payload].concat()
}

fn data(stream: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32 | u32::from(flags) << 24).to_be_bytes();
    [&stream.to_be_bytes()[..], &length, payload].concat()
}

/// Returns the frames of `input`, which is decoded `part` bytes at a time, and the data of all
/// streams. Of data frames, only the last one of a stream is returned, because the number of the
/// others depends on `part`.
fn decode(input: &[u8], part: usize) -> Result<(Vec<Frame>, Vec<u8>), DecodeError> {
    let (mut decoder, mut frames, mut contents) = (Decoder::default(), Vec::new(), Vec::new());
    let (mut start, mut end) = (0, 0);
    loop {
        let step = decoder.decode(&input[start..end])?;
        let consumed = &input[start..start + step.consumed];
        start += step.consumed;
        match step.frame {
            None if step.consumed == 0 && end == input.len() => return Ok((frames, contents)),
            None if step.consumed == 0 => end = input.len().min(end + part),
            None => {}
            Some(frame @ Frame::Data { last, .. }) => {
                contents.extend(consumed);
                if last {
                    frames.push(frame);
                }
            }
            Some(frame) => frames.push(frame),
        }
    }
}

#[test]
fn frames_are_decoded_independently_of_how_the_input_is_split() {
    let conversation = [
        control(kind::SYN_REPLY, 0, &[0, 0, 0, 1, 0x78, 0xbb, 1, 2, 3]),
        control(kind::SYN_REPLY, 1, &[0, 0, 0, 3]),
        control(kind::SETTINGS, 0, &[0, 0, 0, 0]),
        control(kind::PING, 0, &[0, 0, 0, 2]),
        data(3, 0, b"first "),
        data(3, 1, b"second"),
        control(kind::WINDOW_UPDATE, 0, &[0, 0, 0, 0, 0, 1, 0, 0]),
        control(kind::HEADERS, 1, &[0, 0, 0, 1, 9, 9, 9]),
        data(1, 1, b""),
        control(kind::RST_STREAM, 0, &[0, 0, 0, 1, 0, 0, 0, 5]),
        control(kind::GOAWAY, 0, &[0, 0, 0, 3, 0, 0, 0, 0]),
    ]
    .concat();
    let wanted = vec![
        Frame::Reply { stream: 1, last: false },
        Frame::Reply { stream: 3, last: true },
        Frame::Ignored,
        Frame::Ping(2),
        Frame::Data { stream: 3, last: true },
        Frame::Ignored,
        Frame::Headers { stream: 1, last: true },
        Frame::Data { stream: 1, last: true },
        Frame::Reset { stream: 1, status: 5 },
        Frame::GoAway { last_good: 3 },
    ];
    for part in 1..=conversation.len() {
        let (frames, contents) = decode(&conversation, part).unwrap();
        assert_eq!(contents, b"first second");
        assert_eq!(frames, wanted, "in parts of {part}");
    }
}

#[test]
fn frames_that_a_server_may_not_send_are_errors() {
    for (frame, error) in [
        (vec![0x80, 2, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0], DecodeError::Version(2)),
        (control(5, 0, &[]), DecodeError::Type(5)),
        (control(10, 0, &[]), DecodeError::Type(10)),
        (control(kind::RST_STREAM, 0, &[0; 7]), DecodeError::Length(kind::RST_STREAM, 7)),
        (control(kind::RST_STREAM, 0, &[0; 9]), DecodeError::Length(kind::RST_STREAM, 9)),
        (control(kind::PING, 0, &[0; 5]), DecodeError::Length(kind::PING, 5)),
        (control(kind::SYN_REPLY, 0, &[0; 3]), DecodeError::Length(kind::SYN_REPLY, 3)),
        (control(kind::SETTINGS, 0, &[0; 16 << 10 | 1]), DecodeError::Length(kind::SETTINGS, 16385)),
        (control(kind::RST_STREAM, 0, &[0; 8]), DecodeError::StreamZero(kind::RST_STREAM)),
        (data(0, 0, b"x"), DecodeError::StreamZero(0)),
        (control(kind::SYN_STREAM, 0, &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0]), DecodeError::ServerStream(2)),
    ] {
        for part in [1, frame.len()] {
            assert_eq!(decode(&frame, part), Err(error), "{frame:?}");
        }
    }
}

#[test]
fn a_frame_that_announces_16_mib_is_returned_in_parts() {
    let mut decoder = Decoder::default();
    let head = [0, 0, 0, 3, 1, 0xff, 0xff, 0xff];
    assert_eq!(decoder.decode(&head).unwrap(), Step { consumed: 8, frame: None });
    assert!(!decoder.is_between_frames());
    let frame = Some(Frame::Data { stream: 3, last: false });
    assert_eq!(decoder.decode(b"secret").unwrap(), Step { consumed: 6, frame });
    assert_eq!(decoder.decode(b"").unwrap(), Step { consumed: 0, frame: None });
}

#[test]
fn frames_of_a_client_open_streams_and_have_no_other_headers() {
    let decode_all = |input: &[u8], part: usize| {
        let (mut decoder, mut found) = (Decoder::of(Sender::Client), Vec::new());
        let (mut start, mut end) = (0, 0);
        loop {
            let step = decoder.decode(&input[start..end])?;
            found.extend(step.frame.map(|frame| (frame, input[start..start + step.consumed].to_vec())));
            start += step.consumed;
            match step {
                Step { consumed: 0, frame: None } if end == input.len() => return Ok(found),
                Step { consumed: 0, frame: None } => end = input.len().min(end + part),
                _ => {}
            }
        }
    };
    let opening = control(kind::SYN_STREAM, 0, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7, 8, 9]);
    let input = [opening, data(1, 1, b"x"), control(kind::GOAWAY, 0, &[0; 8])].concat();
    let wanted = vec![
        (Frame::Opening { stream: 1, complete: true }, vec![7, 8, 9]),
        (Frame::Data { stream: 1, last: true }, b"x".to_vec()),
        (Frame::GoAway { last_good: 0 }, vec![]),
    ];
    assert_eq!(decode_all(&input, 1000), Ok(wanted));
    let parts = decode_all(&input, 1).unwrap();
    let headers = parts.iter().filter(|(frame, _)| matches!(frame, Frame::Opening { .. }));
    assert_eq!(headers.flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>(), [7, 8, 9]);
    for (input, wanted) in [
        (control(kind::SYN_STREAM, 0, &[0; 10]), DecodeError::StreamZero(kind::SYN_STREAM)),
        (control(kind::SYN_STREAM, 0, &[0; 9]), DecodeError::Length(kind::SYN_STREAM, 9)),
        (control(kind::SYN_REPLY, 0, &[0, 0, 0, 1]), DecodeError::ClientHeaders(kind::SYN_REPLY)),
        (control(kind::HEADERS, 0, &[0, 0, 0, 1]), DecodeError::ClientHeaders(kind::HEADERS)),
    ] {
        assert_eq!(decode_all(&input, 3), Err(wanted));
    }
}
