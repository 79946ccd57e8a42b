//! What a change of the configuration warns of, before it is made and after.

use config::Config;
use config::Fault;
use config::Warning;

use crate::event_log;
use crate::event_log::EventLogView;

/// Most warnings of `natrix check` to repeat: thousands of rules may overlap.
const REPEATED_MAX: usize = 20;

/// What a shorter retention deletes, and what `natrix check` warns of in `after` but not in
/// `before`, the running configuration.
pub(super) fn of_change(before: &Config, after: &Config, running: Option<&EventLogView>) -> Vec<String> {
    let mut new = new_ones(&before.warnings, &after.warnings).into_iter();
    let mut found: Vec<String> = event_log::shortened(before, after, running).into_iter().collect();
    found.extend(new.by_ref().take(REPEATED_MAX).map(|warning| warning.0.sentence()));
    match new.count() {
        0 => {}
        more => found.push(format!("{}; natrix check lists all", control::counted(more as u64, "further warning"))),
    }
    found
}

/// Lines and places in lists are no difference: each earlier warning stands for one that differs in
/// these only.
fn new_ones<'a>(before: &[Warning], after: &'a [Warning]) -> Vec<&'a Warning> {
    let mut known: Vec<String> = before.iter().map(without_places).collect();
    let is_new = |warning: &&Warning| {
        let text = without_places(warning);
        let place = known.iter().position(|known| *known == text);
        place.is_none_or(|place| {
            known.swap_remove(place);
            false
        })
    };
    after.iter().filter(is_new).collect()
}

fn without_places(warning: &Warning) -> String {
    let Fault { object, problem, seen, .. } = &warning.0;
    let text = format!("{object}: {problem} ({seen})");
    let mut without = String::with_capacity(text.len());
    let mut is_place = false;
    for c in text.chars() {
        is_place = c.is_ascii_digit() && (is_place || without.ends_with('[') || without.ends_with("line "));
        if !is_place {
            without.push(c);
        }
    }
    without
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Config {
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"net_ring0\"\naddresses = [\"100.64.0.1/24\"]\n\
             [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_ring1\"\naddresses = [\"192.0.2.2/30\"]\n\
             [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n{more}"
        );
        config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    fn warning(problem: String) -> Warning {
        let (file, object) = ("test.toml".to_owned(), "rule[1]".to_owned());
        Warning(Fault { file, line: Some(7), object, problem, seen: String::new(), remedy: "mend it".to_owned() })
    }

    #[test]
    fn a_change_that_removes_the_default_route_warns() {
        let route = "[[route]]\nprefix = \"0.0.0.0/0\"\nvia = \"192.0.2.1\"\n";
        let (with, without) = (config(route), config(""));
        let [warning] = <[String; 1]>::try_from(of_change(&with, &without, None)).unwrap();
        assert!(warning.starts_with("test.toml: route: there is no default route outside"), "{warning}");
        assert!(warning.contains("; write a [[route]] with prefix"), "{warning}");
        assert_eq!(of_change(&without, &with, None), Vec::<String>::new());
        assert_eq!(of_change(&without, &without, None), Vec::<String>::new());
    }

    #[test]
    fn a_warning_that_only_moved_is_not_new() {
        let mut before = config("");
        let mut after = before.clone();
        before.warnings = vec![warning("overlaps the rule on line 5".to_owned())];
        after.warnings = [15, 25].map(|line| warning(format!("overlaps the rule on line {line}"))).to_vec();
        let wanted = ["test.toml:7: rule[1]: overlaps the rule on line 25; mend it"];
        assert_eq!(of_change(&before, &after, None), wanted);
        // Other numbers are of other objects.
        before.warnings = vec![warning("pool \"p1\" has no route to 10.0.0.0/25".to_owned())];
        for other in ["pool \"p2\" has no route to 10.0.0.0/25", "pool \"p1\" has no route to 10.0.1.0/25"] {
            after.warnings = vec![warning(other.to_owned())];
            assert_eq!(of_change(&before, &after, None).len(), 1, "{other}");
        }
    }

    #[test]
    fn of_many_warnings_only_some_are_repeated() {
        let (before, mut after) = (config(""), config(""));
        after.warnings.extend((0..40).map(|number| warning("x".repeat(number))));
        let found = of_change(&before, &after, None);
        assert_eq!(found.len(), REPEATED_MAX + 1, "{found:?}");
        assert_eq!(found[REPEATED_MAX], "20 further warnings; natrix check lists all");
    }
}
