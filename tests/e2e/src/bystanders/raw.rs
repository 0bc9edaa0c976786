//! Sends HTTP/2 requests frame by frame, with strings that are not Huffman-coded: such heads are as
//! short on the wire as their content, so the proxy accepts heads that grow when they are encoded
//! again.

use anyhow::{Context as _, bail};
use http::HeaderName;
use pinniped_test_support::certs::Pair;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Target;
use crate::walkthrough::EXTERNAL_NAME;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The minimum of the largest frame size that a peer can set.
const FRAME: usize = 16_384;

/// Sends a GET. Returns the status of the response if it is in the static table, otherwise 0.
pub(super) async fn get(
    target: &Target,
    client: Option<&Pair>,
    path: &str,
    fields: &[(String, Vec<u8>)],
) -> anyhow::Result<u16> {
    let mut block = Vec::new();
    let pseudo = [(":method", "GET"), (":scheme", "https"), (":authority", EXTERNAL_NAME), (":path", path)];
    for (name, value) in pseudo {
        literal(name.as_bytes(), value.as_bytes(), &mut block);
    }
    for (name, value) in fields {
        if HeaderName::from_lowercase(name.as_bytes()).is_ok() {
            literal(name.as_bytes(), value, &mut block);
        }
    }
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(SETTINGS, 0, 0, &[], &mut out);
    let mut parts = block.chunks(FRAME).peekable();
    let (mut kind, mut flags) = (HEADERS, END_STREAM);
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            flags |= END_HEADERS;
        }
        frame(kind, flags, 1, part, &mut out);
        (kind, flags) = (CONTINUATION, 0);
    }
    let tls = target.connect(b"h2", client).await?;
    let (mut reader, mut writer) = tokio::io::split(tls);
    let writing = async {
        // A server that rejects the request early stops reading.
        let _unimportant = writer.write_all(&out).await;
        let _unimportant = writer.flush().await;
        std::future::pending::<()>().await;
    };
    let reading = async {
        loop {
            let mut head = [0; 9];
            reader.read_exact(&mut head).await.context("closed by the proxy")?;
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            reader.read_exact(&mut payload).await.context("closed by the proxy")?;
            match head[3] {
                HEADERS => return Ok(status(&payload)),
                DATA => return Ok(0),
                RST_STREAM => bail!("reset with {payload:?}"),
                GOAWAY => bail!("sent away with {:?}", payload.get(4..8)),
                _ => {}
            }
        }
    };
    tokio::select! {
        () = writing => bail!("unreachable: the writer waits indefinitely"),
        response = reading => response,
    }
}

/// Encodes a field that is never indexed (RFC 7541, section 6.2.3) with name and value as they are.
fn literal(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.push(0x10);
    for text in [name, value] {
        // An integer with a prefix of seven bits (section 5.1).
        if text.len() < 127 {
            out.push(text.len() as u8);
        } else {
            out.push(127);
            let mut rest = text.len() - 127;
            while rest >= 128 {
                out.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            out.push(rest as u8);
        }
        out.extend_from_slice(text);
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Decodes a status of HPACK's static table.
fn status(block: &[u8]) -> u16 {
    match block.first() {
        Some(0x88) => 200,
        Some(0x8c) => 400,
        Some(0x8d) => 404,
        Some(0x8e) => 500,
        _ => 0,
    }
}
