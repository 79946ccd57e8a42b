//! What the probe found: a value, what was seen, and what the RFCs say to it.

use core::fmt;

use serde::Serialize;
use serde_json::Value;
use serde_json::json;

/// Whether a requirement is met by what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As the RFC asks.
    Met,
    /// Not as the RFC asks.
    NotMet,
    /// What the requirement is about does not exist here, or the RFC leaves the choice.
    NotApplicable,
    /// What was seen does not decide it: not waited for long enough, too few addresses.
    Undecided,
}

impl Verdict {
    /// Met or not.
    pub const fn of(is_met: bool) -> Verdict {
        if is_met { Verdict::Met } else { Verdict::NotMet }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Met => "met",
            Verdict::NotMet => "not met",
            Verdict::NotApplicable => "not applicable",
            Verdict::Undecided => "undecided",
        })
    }
}

/// A requirement beside a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Judgement {
    /// Its number: `RFC 4787 REQ-1`.
    pub requirement: &'static str,
    /// What it asks for, in a few words.
    pub asks: &'static str,
    /// Whether that is so.
    pub verdict: Verdict,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about: `mapping.udp`. The same in every run.
    pub name: String,
    /// What was found, in a few words that do not change from run to run.
    pub value: String,
    /// What was seen, line by line.
    pub evidence: Vec<String>,
    /// What the RFCs say to it.
    pub judgements: Vec<Judgement>,
}

impl Finding {
    /// A finding nothing has been said to yet.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Finding {
        Finding { name: name.into(), value: value.into(), evidence: Vec::new(), judgements: Vec::new() }
    }

    /// All judgements in one: not met when one is not, undecided when one is.
    pub fn verdict(&self) -> Verdict {
        let any = |verdict| self.judgements.iter().any(|judgement| judgement.verdict == verdict);
        [Verdict::NotMet, Verdict::Undecided, Verdict::Met]
            .into_iter()
            .find(|verdict| any(*verdict))
            .unwrap_or(Verdict::NotApplicable)
    }

    /// As it stands in a result. `requirement` and `verdict` are all of `judgements` in one.
    pub fn record(&self) -> Value {
        let requirements: Vec<&str> = self.judgements.iter().map(|judgement| judgement.requirement).collect();
        json!({
            "name": self.name,
            "value": self.value,
            "requirement": requirements.join(", "),
            "verdict": self.verdict(),
            "judgements": self.judgements,
            "evidence": self.evidence,
        })
    }

    /// With a line of evidence.
    #[must_use]
    pub fn seen(mut self, line: impl Into<String>) -> Finding {
        self.evidence.push(line.into());
        self
    }

    /// With these lines of evidence.
    #[must_use]
    pub fn seen_all(mut self, lines: Vec<String>) -> Finding {
        self.evidence.extend(lines);
        self
    }

    /// With a requirement.
    #[must_use]
    pub fn judged(mut self, requirement: &'static str, asks: &'static str, verdict: Verdict) -> Finding {
        self.judgements.push(Judgement { requirement, asks, verdict });
        self
    }
}
