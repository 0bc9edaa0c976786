//! Tests with a server that sends prepared frames.

use tokio::io::{DuplexStream, duplex};

use super::*;

const REPLIES: &[u8] = b"\x80\x03\0\x02\0\0\0\x04\0\0\0\x01\x80\x03\0\x02\0\0\0\x04\0\0\0\x03";

fn data(stream: StreamId, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32 | u32::from(flags) << 24).to_be_bytes();
    [&stream.to_be_bytes()[..], &length, payload].concat()
}

/// Returns a client with two streams, the server's end, and the bytes that the client has sent so
/// far.
async fn connected() -> (Client<DuplexStream>, DuplexStream) {
    let (near, mut far) = duplex(4 << 20);
    let mut client = Client::new(near, INITIAL_WINDOW);
    assert_eq!(client.open(&[("streamtype", "error")]).await.unwrap(), 1);
    assert_eq!(client.open(&[("streamtype", "stdout")]).await.unwrap(), 3);
    let mut opened = vec![0; 4096];
    let mut length = 0;
    while length < 61 + 56 + 16 {
        length += far.read(&mut opened[length..]).await.unwrap();
    }
    assert_eq!(length, 61 + 56 + 16, "{:?}", &opened[..length]);
    (client, far)
}

/// Returns all events until the connection ends, and the data of stream 3.
async fn events(client: &mut Client<DuplexStream>) -> Result<(Vec<String>, Vec<u8>), ClientError> {
    let (mut seen, mut contents) = (Vec::new(), Vec::new());
    while let Some(event) = client.next().await? {
        match event {
            Event::Data(3, data) => contents.extend(data),
            other => seen.push(format!("{other:?}")),
        }
    }
    Ok((seen, contents))
}

async fn events_of(sent: &[u8]) -> Result<(Vec<String>, Vec<u8>), ClientError> {
    let (mut client, mut far) = connected().await;
    far.write_all(sent).await.unwrap();
    far.shutdown().await.unwrap();
    events(&mut client).await
}

#[tokio::test]
async fn data_is_returned_in_order_and_each_stream_is_closed_once() {
    let sent = [
        REPLIES,
        &data(3, 0, b"one "),
        &data(3, 1, b"two"),
        &data(1, 0, b"{}"),
        b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x01\0\0\0\x05",
        b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x03\0\0\0\x05",
        b"\x80\x03\0\x07\0\0\0\x08\0\0\0\x03\0\0\0\0",
    ];
    let (seen, contents) = events_of(&sent.concat()).await.unwrap();
    assert_eq!(contents, b"one two");
    assert_eq!(seen, ["Closed(3)", "Data(1, [123, 125])", "Closed(1)"]);
}

#[tokio::test]
async fn a_stream_that_the_server_does_not_accept_is_refused() {
    let reset = b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x03\0\0\0\x03";
    assert_eq!(events_of(reset).await.unwrap().0, ["Refused(3)"]);
    let go_away = b"\x80\x03\0\x07\0\0\0\x08\0\0\0\x01\0\0\0\0";
    assert_eq!(events_of(go_away).await.unwrap().0, ["Refused(3)"]);
}

#[tokio::test]
async fn data_on_a_stream_that_is_not_open_is_an_error() {
    for sent in [data(5, 0, b"x"), data(2, 0, b"x"), [data(3, 1, b"x"), data(3, 0, b"x")].concat()] {
        let error = events_of(&sent).await.unwrap_err();
        assert!(matches!(error, ClientError::NotOpen(_)), "{error}");
    }
}

#[tokio::test]
async fn a_connection_that_ends_inside_of_a_frame_is_an_error() {
    let sent = [REPLIES, &data(3, 0, b"key")].concat();
    for end in 1..sent.len() {
        let ended = events_of(&sent[..end]).await;
        let between_frames = [12, 24].contains(&end);
        assert_eq!(ended.is_ok(), between_frames, "after {end} bytes");
    }
}

#[tokio::test]
async fn pings_are_sent_back_and_replies_to_pings_are_not() {
    let (mut client, mut far) = connected().await;
    let ping = b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x08";
    far.write_all(b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x07").await.unwrap();
    far.write_all(ping).await.unwrap();
    far.shutdown().await.unwrap();
    events(&mut client).await.unwrap();
    drop(client);
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, ping);
}

#[tokio::test]
async fn windows_are_enlarged_with_the_streams_and_nothing_is_sent_later() {
    let (near, mut far) = duplex(4 << 20);
    let mut client = Client::new(near, 1 << 20);
    client.open(&[]).await.unwrap();
    client.open(&[]).await.unwrap();
    far.write_all(&data(3, 1, &vec![b'x'; 1 << 20])).await.unwrap();
    far.shutdown().await.unwrap();
    assert_eq!(events(&mut client).await.unwrap().1.len(), 1 << 20);
    drop(client);
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    let all_but_initial = (1 << 20) - (64 << 10);
    let updates = [
        [encode::window_update(1, all_but_initial), encode::window_update(0, all_but_initial)].concat(),
        [encode::window_update(3, all_but_initial), encode::window_update(0, 1 << 20)].concat(),
    ];
    let opened = |length: usize| &received[length..length + 32];
    assert_eq!([opened(38), opened(38 + 32 + 32)], [&updates[0][..], &updates[1]], "{received:?}");
    assert_eq!(received.len(), 38 + 32 + 32 + 32);
}

#[tokio::test]
async fn the_number_of_streams_is_limited_to_those_of_a_remote_command() {
    let (near, _far) = duplex(4 << 10);
    let mut client = Client::new(near, INITIAL_WINDOW);
    for _ in 0..MAX_STREAMS {
        client.open(&[("streamtype", "stdout")]).await.unwrap();
    }
    let error = client.open(&[("streamtype", "stdout")]).await.unwrap_err();
    assert_eq!(error.to_string(), "more than 4 streams");
}
