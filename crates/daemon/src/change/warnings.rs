//! What a change of the configuration warns of, before it is made and after.

use config::Config;
use config::Warning;

use crate::event_log;
use crate::event_log::EventLogView;

/// Most warnings of `natrix check` to repeat: thousands of rules may overlap.
const REPEATED_MAX: usize = 20;

/// What a shorter retention deletes, and what `natrix check` warns of in `after` but not in
/// `before`, the running configuration.
pub(super) fn of_change(before: &Config, after: &Config, running: Option<&EventLogView>) -> Vec<String> {
    let is_new = |warning: &&Warning| !before.warnings.iter().any(|known| is_same(known, warning));
    let mut new = after.warnings.iter().filter(is_new);
    let mut found: Vec<String> = event_log::shortened(before, after, running).into_iter().collect();
    found.extend(new.by_ref().take(REPEATED_MAX).map(|warning| warning.0.sentence()));
    match new.count() {
        0 => {}
        more => found.push(format!("{}; natrix check lists all", control::counted(more as u64, "further warning"))),
    }
    found
}

/// Whether two configurations have the same warning, on whatever line.
fn is_same(known: &Warning, new: &Warning) -> bool {
    (&known.0.object, &known.0.problem, &known.0.seen) == (&new.0.object, &new.0.problem, &new.0.seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str, rules: usize) -> Config {
        let rule = "[[rule]]\nsources = [\"100.64.0.7\"]\naction = \"drop\"\n";
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"net_ring0\"\naddresses = [\"100.64.0.1/24\"]\n\
             [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_ring1\"\naddresses = [\"192.0.2.2/30\"]\n\
             [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n{more}{}",
            rule.repeat(rules)
        );
        config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    #[test]
    fn a_change_that_removes_the_default_route_warns() {
        let route = "[[route]]\nprefix = \"0.0.0.0/0\"\nvia = \"192.0.2.1\"\n";
        let (with, without) = (config(route, 0), config("", 0));
        let [warning] = <[String; 1]>::try_from(of_change(&with, &without, None)).unwrap();
        assert!(warning.starts_with("test.toml: route: there is no default route outside"), "{warning}");
        assert!(warning.contains("; write a [[route]] with prefix"), "{warning}");
        assert_eq!(of_change(&without, &with, None), Vec::<String>::new());
        assert_eq!(of_change(&without, &config("\n\n", 0), None), Vec::<String>::new(), "on another line");
    }

    #[test]
    fn of_many_warnings_only_some_are_repeated() {
        let found = of_change(&config("", 0), &config("", 40), None);
        assert_eq!(found.len(), REPEATED_MAX + 1, "{found:?}");
        assert!(found[0].contains("rule"), "{found:?}");
        let after = config("", 40).warnings.len() - config("", 0).warnings.len() - REPEATED_MAX;
        assert_eq!(found[REPEATED_MAX], format!("{after} further warnings; natrix check lists all"));
    }
}
