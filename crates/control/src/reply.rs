//! Answers of the server.

use serde::Deserialize;
use serde::Serialize;

use crate::fault::Fault;
use crate::objects::Alg;
use crate::objects::AuditRecord;
use crate::objects::Change;
use crate::objects::ConfigFault;
use crate::objects::Counter;
use crate::objects::Drained;
use crate::objects::DropReason;
use crate::objects::Expectation;
use crate::objects::FindAnswer;
use crate::objects::Grant;
use crate::objects::Interface;
use crate::objects::Mapping;
use crate::objects::Neighbour;
use crate::objects::Plan;
use crate::objects::PlanDetail;
use crate::objects::Pool;
use crate::objects::PoolAddress;
use crate::objects::PoolPlan;
use crate::objects::Reloaded;
use crate::objects::Route;
use crate::objects::Rule;
use crate::objects::Session;
use crate::objects::Status;
use crate::objects::Subscriber;
use crate::objects::TraceRecord;
use crate::objects::WhyAnswer;

/// Closes the answer to a request that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Cursor of the next page; absent at the end.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The objects.
    pub objects: Vec<T>,
    /// Cursor of the next page; None at the end.
    pub cursor: Option<String>,
}

impl<T> Page<T> {
    /// A list of one page.
    pub fn whole(objects: Vec<T>) -> Page<T> {
        Page { objects, cursor: None }
    }

    /// The same page of other objects.
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> Page<U> {
        Page { objects: self.objects.into_iter().map(convert).collect(), cursor: self.cursor }
    }
}

impl<T: Into<Reply>> Page<T> {
    /// The page as lines from the server.
    pub fn replies(self) -> Page<Reply> {
        self.map(Into::into)
    }
}

macro_rules! replies {
    ($( $variant:ident($object:ident), $description:literal; )+) => {
        /// One line from the server: `{"<kind>":{...}}`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[allow(clippy::large_enum_variant, reason = "there is one reply at a time; most have no need of a box")]
        pub enum Reply {
            $( #[doc = $description] $variant($object), )+
            /// The answer is complete.
            End(End),
            /// The request failed; nothing follows.
            Error(Fault),
        }

        $(
            impl From<$object> for Reply {
                fn from(object: $object) -> Reply {
                    Reply::$variant(object)
                }
            }

            impl Object for $object {
                fn from_reply(reply: Reply) -> Result<$object, Box<Reply>> {
                    match reply {
                        Reply::$variant(object) => Ok(object),
                        other => Err(Box::new(other)),
                    }
                }
            }
        )+
    };
}

/// An object that answers a request.
pub trait Object: Sized + Serialize + Into<Reply> {
    /// The object in `reply`, or the reply itself if it is of another kind.
    fn from_reply(reply: Reply) -> Result<Self, Box<Reply>>;
}

replies! {
    Status(Status), "Answers `status`.";
    Interface(Interface), "Answers `interfaces`.";
    Pool(Pool), "Answers `pools`.";
    PoolAddress(PoolAddress), "Answers `pool_addresses`.";
    Subscriber(Subscriber), "Answers `subscribers`.";
    Mapping(Mapping), "Answers `mappings`.";
    Grant(Grant), "Answers `grants`.";
    Alg(Alg), "Answers `algs`.";
    Expectation(Expectation), "Answers `expectations`.";
    Session(Session), "Answers `sessions`.";
    Rule(Rule), "Answers `rules`.";
    Route(Route), "Answers `routes`.";
    Neighbour(Neighbour), "Answers `neighbours`.";
    Counter(Counter), "Answers `counters`.";
    Drop(DropReason), "Answers `drops`.";
    Find(FindAnswer), "Answers `find`.";
    Why(WhyAnswer), "Answers `why`.";
    Trace(TraceRecord), "Answers `trace`.";
    Change(Change), "Answers `plan` and `reload`, before the rest.";
    PoolPlan(PoolPlan), "Answers `plan`.";
    PlanDetail(PlanDetail), "Answers `plan`.";
    Plan(Plan), "Answers `plan`.";
    Reloaded(Reloaded), "Answers `reload`.";
    Drained(Drained), "Answers `drain`.";
    Audit(AuditRecord), "Answers `audit` and `record`.";
    ConfigFault(ConfigFault), "Answers `plan` and `reload` before their error, when the file has faults.";
}
