use std::net::{Ipv4Addr, TcpListener};
use std::thread::JoinHandle;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::control_plane::{KubernetesRelease, Module, minor_prefix};

/// A response of the server: the header fields, and the body.
type Response = (String, Vec<u8>);

/// A server that gives one response for each connection, and then stops.
struct Loopback {
    folder: String,
    thread: JoinHandle<()>,
}

impl Loopback {
    fn start(responses: Vec<Response>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let folder = format!("http://{}/", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            for (head, body) in responses {
                let (mut connection, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    connection.read_exact(&mut byte).unwrap();
                    request.push(byte[0]);
                }
                let request = String::from_utf8(request).unwrap();
                assert!(request.starts_with("GET /programs-amd64.tar.gz HTTP/1.1\r\n"), "{request}");
                // The client ends the connection early if the body is too large.
                let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(&body));
            }
        });
        Self { folder, thread }
    }

    /// Waits until the last response was requested.
    fn finish(self) {
        self.thread.join().unwrap();
    }
}

fn complete(body: &[u8]) -> Response {
    (format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()), body.to_vec())
}

/// A response that ends before its length.
fn cut_off(body: &[u8]) -> Response {
    (complete(body).0, body[..body.len() / 2].to_vec())
}

/// A response without a length, which ends with the connection.
fn unbounded(body: &[u8]) -> Response {
    ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned(), body.to_vec())
}

fn status(status: &str) -> Response {
    (format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"), Vec::new())
}

/// Returns an archive with these files.
fn packed(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, *bytes).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

fn sha512(bytes: &[u8]) -> &'static str {
    let mut hasher = Hasher::for_sum(&"0".repeat(128));
    hasher.update(bytes);
    hasher.finish().leak()
}

/// An archive of tests, whose bytes are `bytes` for both processors.
fn archive(bytes: &[u8]) -> Archive {
    let sum = sha512(bytes);
    Archive {
        title: "programs",
        folder: "https://none.invalid/",
        file: "programs-ARCH.tar.gz",
        sums: [("amd64", sum), ("arm64", sum)],
        max: 4096,
        programs: &[("one", "bin/one"), ("two", "bin/ARCH/two")],
    }
}

/// Downloads from a server with these responses. Returns the result, and the files that are left.
fn fetch(archive: &Archive, protocols: &str, responses: Vec<Response>) -> (anyhow::Result<()>, Vec<String>) {
    let work = tempfile::tempdir().unwrap();
    let out = work.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let loopback = Loopback::start(responses);
    let server = Server { folder: Some(&loopback.folder), protocols, pause: Duration::ZERO };
    let fetched = archive.programs("amd64", server, work.path(), &out);
    loopback.finish();
    let mut files: Vec<String> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    (fetched, files)
}

fn programs() -> Vec<u8> {
    packed(&[("bin/other", b"x"), ("bin/amd64/two", b"second"), ("bin/one", b"#!/bin/sh\necho 1\n")])
}

#[test]
fn a_good_archive_results_in_executable_programs() {
    let bytes = programs();
    let work = tempfile::tempdir().unwrap();
    let loopback = Loopback::start(vec![complete(&bytes)]);
    let server = Server { folder: Some(&loopback.folder), protocols: "=http", pause: Duration::ZERO };
    let out = work.path().join("out");
    std::fs::create_dir(&out).unwrap();
    archive(&bytes).programs("amd64", server, work.path(), &out).unwrap();
    loopback.finish();
    let output = Command::new(out.join("one")).output().unwrap();
    assert_eq!(output.stdout, b"1\n");
    assert_eq!(std::fs::read(out.join("two")).unwrap(), b"second");
    assert!(!work.path().join("programs-amd64.tar.gz").exists());
}

#[test]
fn an_archive_that_is_cut_off_is_downloaded_again_from_its_beginning() {
    let bytes = programs();
    let (fetched, files) = fetch(&archive(&bytes), "=http", vec![cut_off(&bytes), complete(&bytes)]);
    fetched.unwrap();
    assert_eq!(files, ["one", "two"]);
}

#[test]
fn downloads_that_fail_leave_no_program() {
    let bytes = programs();
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    let large = vec![0; 8192];
    let other = packed(&[("bin/one", b"1")]);
    let table: [(&str, Archive, Vec<Response>, &str); 6] = [
        ("wrong checksum", archive(&bytes), vec![complete(&changed)], "instead of"),
        ("always cut off", archive(&bytes), vec![cut_off(&bytes); 3], "gave up after 3 attempts"),
        ("too large by its length", archive(&large), vec![complete(&large)], "aximum"),
        ("too large without a length", archive(&large), vec![unbounded(&large)], "has more than"),
        ("not there", archive(&bytes), vec![status("404 Not Found")], "404"),
        ("a program is missing", archive(&other), vec![complete(&other)], "does not contain bin/amd64/two"),
    ];
    for (case, archive, responses, message) in table {
        let (fetched, files) = fetch(&archive, "=http", responses);
        let error = format!("{:#}", fetched.unwrap_err());
        assert!(error.contains(message), "{case}: {error}");
        assert!(files.is_empty() || case == "a program is missing", "{case}: {files:?}");
    }
}

#[test]
fn publishers_are_asked_with_https_only() {
    let work = tempfile::tempdir().unwrap();
    let server = Server { folder: Some("http://127.0.0.1:9/"), ..PUBLISHERS };
    let error = archive(b"").programs("amd64", server, work.path(), work.path()).unwrap_err();
    assert!(format!("{error:#}").contains("rotocol"), "{error:#}");
    for archive in [&ETCD, &KUBERNETES] {
        assert!(archive.folder.starts_with("https://"), "{}", archive.folder);
        for (rust, processor) in PROCESSORS {
            let sum = archive.sum(processor);
            assert!([64, 128].contains(&sum.len()), "{} for {rust}", archive.title);
            assert!(sum.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)), "{sum}");
        }
    }
}

#[test]
fn the_published_release_is_the_minor_release_that_is_built() {
    let built = Module::kubernetes(KubernetesRelease::default()).unwrap();
    let published = KUBERNETES.title.strip_prefix("Kubernetes v").unwrap();
    assert!(published.starts_with(&minor_prefix(&built.version)), "{published}");
    assert!(KUBERNETES.folder.ends_with(&format!("/v{published}/")), "{}", KUBERNETES.folder);
    let names: Vec<&str> =
        [&ETCD, &KUBERNETES].iter().flat_map(|a| a.programs).map(|(name, _)| *name).collect();
    assert_eq!(names, TOOLS.map(|tool| tool.name));
}

#[test]
fn the_length_of_the_last_response_is_shown() {
    let headers = "HTTP/2 302\r\ncontent-length: 0\r\n\r\nHTTP/2 200\r\nContent-Length: 123\r\n\r\n";
    assert_eq!(length(headers), Some(123));
    assert_eq!(length("HTTP/1.1 200 OK\r\n\r\n"), None);
}
