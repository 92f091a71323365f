//! Connections on which an answer may be long in coming, and then comes without a pause.

use ureq::config::Config;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};
use ureq::{Agent, Error, Timeout};

/// An agent whose limit of the time of each read holds for the body alone: the begin of an answer
/// has one of its own.
pub fn agent(config: Config) -> Agent {
    let connector = DefaultConnector::default().chain(Waiting);
    Agent::with_parts(config, connector, DefaultResolver::default())
}

#[derive(Debug)]
struct Waiting;

impl<In: Transport> Connector<In> for Waiting {
    type Out = Connection<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Connection<In>>, Error> {
        Ok(chained.map(Connection))
    }
}

#[derive(Debug)]
struct Connection<T>(T);

impl<T: Transport> Transport for Connection<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.0.await_input(match timeout.reason {
            Timeout::RecvResponse => NextTimeout { per_read: None, ..timeout },
            _ => timeout,
        })
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }

    fn is_tls(&self) -> bool {
        self.0.is_tls()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_begin_of_an_answer_may_take_longer_than_what_follows() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serves = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            std::thread::sleep(Duration::from_millis(600));
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nimage").unwrap();
            stream
        });
        let config = Agent::config_builder()
            .proxy(None)
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_millis(200)))
            .build();
        let mut answer = agent(config).get(format!("http://{address}/")).call().unwrap();
        let mut text = String::new();
        let error = answer.body_mut().as_reader().read_to_string(&mut text).unwrap_err();
        assert_eq!(text, "image");
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        assert!(matches!(cause, Some(Error::Timeout(Timeout::PerRead))), "{error:?}");
        drop(serves.join().unwrap());
    }
}
