//! What the tester itself keeps with a wire between its ports.

use packet_io::Io;

use super::Experiment;
use super::ExperimentError;
use super::Samples;
use crate::ledger::Faults;
use crate::ledger::Handshake;
use crate::ledger::StateTable;

impl<I: Io> Experiment<'_, I> {
    /// Frames a second over connections that exist, both ways together.
    ///
    /// # Errors
    /// When not even the lowest rate passes.
    pub fn ceiling(&mut self) -> Result<Samples, ExperimentError> {
        let table = StateTable::straight(self.space, self.parameters.n, self.parameters.protocol);
        self.highest_kept(|this, rate| {
            let (done, _) = this.phase2(&table, rate, None)?;
            Ok((done.lost, done.faults))
        })
    }

    /// Connections a second that are opened by handshakes, and closed where that is asked for. Both
    /// ends are the tester's, as in every test.
    ///
    /// # Errors
    /// When not even the lowest rate passes.
    pub fn ceiling_of_handshakes(&mut self) -> Result<Samples, ExperimentError> {
        self.highest_kept(|this, rate| {
            let wanted = (rate * this.parameters.trial_seconds) as u64;
            let connections = wanted.clamp(1, this.parameters.n);
            let mut traffic = Handshake::new(this.space, connections, this.parameters.ending()).straight();
            let missing = |traffic: &Handshake<'_>| (connections - traffic.table.len(), traffic.faults);
            let streams = [Some(this.opening(connections, rate)), None];
            let (_, lost, faults) = this.trial("phase1", None, streams, &mut traffic, missing)?;
            Ok((lost, faults))
        })
    }

    fn highest_kept(
        &mut self,
        mut trial: impl FnMut(&mut Self, f64) -> Result<(u64, Faults), ExperimentError>,
    ) -> Result<Samples, ExperimentError> {
        self.repeated(|this| {
            let range = [this.parameters.rate_min, this.parameters.rate_max];
            match this.search("frames", range, false, |this, rate, _| trial(this, rate)) {
                Ok(found) => Ok(found.best),
                // Here it is the tester that is asked.
                Err(ExperimentError::Ceiling { passed, .. }) if passed > 0.0 => Ok(passed),
                Err(ExperimentError::RangeTooLow { rate, .. }) => Ok(rate),
                Err(other) => Err(other),
            }
        })
        .map(Samples::of)
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZero;

    use packet_io::Buffer as _;
    use packet_io::Burst;
    use packet_io::PortIndex;
    use packet_io::PortStatistics;
    use packet_io::memory::MemoryBed;
    use packet_io::memory::MemoryBuffer;
    use packet_io::memory::MemoryIo;
    use packet_io::memory::MemorySettings;

    use super::*;
    use crate::clock::Clock;
    use crate::device::Wire;
    use crate::experiment::Direction;
    use crate::experiment::Parameters;
    use crate::frame::FrameSizes;
    use crate::frame::Protocol;
    use crate::tester::Tester;
    use crate::tester::tests as tests_of_tester;

    /// Two ports with a wire between them, which loses a frame now and then.
    struct Loop {
        bed: MemoryBed,
        memory: MemoryIo,
        passed: u64,
        lose_one_in: Option<NonZero<u64>>,
    }

    impl Io for Loop {
        type Buffer = MemoryBuffer;

        fn port_count(&self) -> usize {
            2
        }

        fn receive(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
            self.memory.receive(port, burst);
        }

        fn transmit(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
            self.memory.transmit(port, burst);
            while let Some((_, buffer)) = self.bed.pull(port) {
                self.passed += 1;
                if self.lose_one_in.is_none_or(|nth| !self.passed.is_multiple_of(nth.get())) {
                    assert!(self.bed.push(0, PortIndex(1 - port.0), buffer.bytes()), "the wire has room");
                }
            }
        }

        fn allocate(&mut self) -> Option<MemoryBuffer> {
            self.memory.allocate()
        }

        fn mac(&self, port: PortIndex) -> [u8; 6] {
            self.memory.mac(port)
        }

        fn can_receive(&self, port: PortIndex) -> bool {
            self.memory.can_receive(port)
        }

        fn can_transmit(&self, port: PortIndex) -> bool {
            self.memory.can_transmit(port)
        }

        fn link_up(&self, port: PortIndex) -> bool {
            self.memory.link_up(port)
        }

        fn statistics(&self, port: PortIndex) -> PortStatistics {
            self.memory.statistics(port)
        }
    }

    fn looped(lose_one_in: Option<NonZero<u64>>) -> Tester<Loop> {
        let bed = MemoryBed::new(&MemorySettings::default());
        let io = Loop { memory: bed.io(0), bed, passed: 0, lose_one_in };
        let mut tester = Tester::with_clock(io, tests_of_tester::ENDS, Clock::simulated());
        tester.face_itself();
        tester
    }

    fn parameters(tcp_close: bool) -> Parameters {
        Parameters {
            n: 300,
            preparation_rate: 1e4,
            alpha: 0.8,
            protocol: Protocol::Tcp,
            tcp_close,
            frame_bytes: FrameSizes::Fixed(64),
            trial_seconds: 0.05,
            rate_min: 1000.0,
            rate_max: 4000.0,
            error: 1000.0,
            repetitions: 1,
            direction: Direction::Both,
            seed: 3,
        }
    }

    #[test]
    fn both_ends_of_a_handshake_are_the_testers_own() {
        let space = tests_of_tester::space();
        for (tcp_close, segments) in [(false, 3), (true, 7)] {
            let parameters = parameters(tcp_close);
            let mut tester = looped(None);
            let mut device = Wire;
            let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
            let samples = this.ceiling_of_handshakes().unwrap();
            assert!((1000.0..=4000.0).contains(&samples.median), "{samples:?}");
            let kept = this.trials().iter().filter(|trial| !trial.void);
            let kept = kept.inspect(|trial| assert_eq!((trial.phase, trial.lost, trial.faults), ("phase1", 0, 0)));
            let kept: Vec<_> = kept.collect();
            assert!(!kept.is_empty());
            for trial in kept {
                // As many as fit the trial's time.
                assert_eq!(trial.sent, ((trial.rate * 0.05) as u64).min(300));
                assert_eq!(trial.answers, trial.sent * (segments - 1));
            }
        }
    }

    #[test]
    fn a_wire_that_loses_segments_passes_no_rate() {
        let space = tests_of_tester::space();
        let parameters = parameters(false);
        let mut tester = looped(NonZero::new(10));
        let mut device = Wire;
        let mut this = Experiment::new(&mut tester, &mut device, &space, &parameters);
        let ended = this.ceiling_of_handshakes();
        assert!(matches!(ended, Err(ExperimentError::NothingPasses { lost: 1.., .. })), "{ended:?}");
    }
}
