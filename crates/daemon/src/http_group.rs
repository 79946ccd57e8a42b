//! The groups of this machine whose members are users of the API.

use config::Http;

/// The number of a group, if the machine has it.
pub fn group_of(group: &str) -> Option<u32> {
    nix::unistd::Group::from_name(group).ok().flatten().map(|group| group.gid.as_raw())
}

/// The users whose group this machine does not have, each with its group.
pub fn users_without_group(http: &Http) -> impl Iterator<Item = (&str, &str)> {
    let with_group = http.users.iter().filter_map(|user| Some((user.name.as_str(), user.group.as_deref()?)));
    with_group.filter(|(_, group)| group_of(group).is_none())
}

/// The key of a user's group, for messages.
pub fn group_key(user: &str) -> String {
    format!("http.user \"{user}\".group")
}
