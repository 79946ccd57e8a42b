//! Answers of `find` about one VRF only.

use control::Find;
use control::FindAnswer;
use control::Place;
use control::Reply;

use super::Answered;
use crate::offline;

/// Leaves out holders in other VRFs than the one that is asked about, if one is. Of an external address there may be some in each.
pub(crate) fn narrow(find: &Find, mut answered: Answered) -> Answered {
    let Some(vrf) = &find.vrf else { return answered };
    let had_some = !answered.replies.is_empty();
    answered.replies.retain(|reply| match reply {
        Reply::Find(answer) => answer.vrf.as_ref().is_none_or(|held| held == vrf),
        _ => true,
    });
    let is_whole = find.cursor.is_none() && answered.cursor.is_none();
    if had_some && answered.replies.is_empty() && is_whole {
        let queried = offline::queried(find.address, find.port);
        let detail = format!("nobody of VRF \"{vrf}\" holds {queried} now");
        let nobody = FindAnswer { detail, ..offline::nobody(Place::External, &queried) };
        answered.replies.push(nobody.into());
    }
    answered
}
