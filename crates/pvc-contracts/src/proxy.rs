//! A TCP proxy that stands between a client and a server and spoils things on request.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Treatment of connections by the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    Pass,
    /// Messages of the client reach the server; what the server says is thrown away.
    SwallowAnswers,
    /// Open connections are cut, new ones are refused.
    Cut,
}

/// Forwards connections to one server.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    traffic: Arc<watch::Sender<Traffic>>,
    listener: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(server: String) -> io::Result<Proxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let traffic = Arc::new(watch::Sender::new(Traffic::Pass));
        let listener = tokio::spawn(listen(listener, server, traffic.clone()));
        Ok(Proxy { port, traffic, listener })
    }

    /// The `host:port` for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn set(&self, traffic: Traffic) {
        self.traffic.send_replace(traffic);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Traffic::Cut);
        self.listener.abort();
    }
}

async fn listen(listener: TcpListener, server: String, traffic: Arc<watch::Sender<Traffic>>) {
    while let Ok((client, _)) = listener.accept().await {
        if *traffic.borrow() == Traffic::Cut {
            continue;
        }
        let Ok(server) = TcpStream::connect(&server).await else { continue };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let mut cut = traffic.subscribe();
        let answers = traffic.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = cut.wait_for(|traffic| *traffic == Traffic::Cut) => {}
                _ = forward(from_client, to_server, None) => {}
                _ = forward(from_server, to_client, Some(answers)) => {}
            }
        });
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    traffic: Option<watch::Receiver<Traffic>>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        let swallow =
            traffic.as_ref().is_some_and(|traffic| *traffic.borrow() == Traffic::SwallowAnswers);
        if !swallow {
            to.write_all(&buffer[..length]).await?;
        }
    }
}
