//! The page. Everything on it comes from this binary; its script asks only this API.

use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::Html;
use axum::response::IntoResponse;
use maud::DOCTYPE;
use maud::Markup;
use maud::html;

use crate::access::Principal;
use crate::routes::Api;
use crate::settings::Role;

const JAVASCRIPT: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/javascript; charset=utf-8")];
const CSS: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/css; charset=utf-8")];

pub(crate) async fn script() -> impl IntoResponse {
    (JAVASCRIPT, include_str!("page/page.js"))
}

pub(crate) async fn style() -> impl IntoResponse {
    (CSS, include_str!("page/page.css"))
}

/// uPlot 1.6.32 (MIT, `page/uPlot.LICENSE`), unchanged.
pub(crate) async fn plot_script() -> impl IntoResponse {
    (JAVASCRIPT, include_str!("page/uPlot.iife.min.js"))
}

pub(crate) async fn plot_style() -> impl IntoResponse {
    (CSS, include_str!("page/uPlot.min.css"))
}

/// A table that the script fills.
fn table(id: &str, caption: &str, columns: &[&str]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(format!("Table: {caption}")) {
            table id=(id) {
                caption { (caption) }
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                tbody {}
            }
        }
    }
}

/// A plot that the script draws, and what its lines are.
fn plot(id: &str, label: &str, legend: Markup) -> Markup {
    html! {
        div {
            p.legend { (legend) }
            div.plot id=(id) role="img" aria-label=(label) {}
        }
    }
}

fn field(id: &str, label: &str, placeholder: &str, required: bool) -> Markup {
    html! {
        label for=(id) { (label) }
        input id=(id) name=(id) placeholder=(placeholder) autocomplete="off" required[required];
    }
}

/// The page for a user: what the role does not permit is not on it.
pub(crate) async fn page(State(api): State<Api>, Extension(principal): Extension<Principal>) -> Html<String> {
    let may = |role: Role| principal.permits(role);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="csrf" content=(api.access.csrf_token(principal.name()));
                title { "Natrix" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="uplot.css";
                link rel="stylesheet" href="page.css";
            }
            body {
                a.skip href="#main" { "Skip to the figures" }
                header {
                    h1 { "Natrix" }
                    p id="instance" { "connecting" }
                    p.user { (principal.name()) " (" (principal.roles()) ")" }
                }
                main id="main" {
                    p.alert id="lost" role="alert" hidden {}
                    p.alert id="alert" role="alert" hidden {}
                    section aria-labelledby="now" {
                        h2 id="now" { "Now" }
                        dl id="figures" {}
                        div.plots {
                            (plot("plot-packets", "Packets a second over the last ten minutes", html! {
                                span.forwarded { "forwarded" } " and " span.dropped { "dropped" } " packets a second"
                            }))
                            (plot("plot-sessions", "Sessions over the last ten minutes", html! { "sessions" }))
                            (plot("plot-mappings", "New mappings a second over the last ten minutes", html! { "new mappings a second" }))
                        }
                    }
                    section aria-labelledby="pools-title" {
                        h2 id="pools-title" { "Pools" }
                        (table("pools", "Pools; ports are sums over UDP, TCP and ICMP", &["Pool", "Allocation", "Addresses", "Subscribers", "Ports in use", "Held down", "In leased blocks", "Utilisation"]))
                        h3 { "External addresses" }
                        p { "One box an address, filled as far as it is used: pale blue, blue from 50 %, orange from 80 %, red from 95 %. Select one for " @if may(Role::Audit) { "its subscribers." } @else { "its figures." } " Arrow keys, Home and End move between boxes." }
                        div id="map" role="toolbar" aria-label="External addresses" {}
                        p id="map-more" hidden { "Only the first addresses are shown; search for the others." }
                        p id="chosen" aria-live="polite" {}
                        @if may(Role::Audit) {
                            h4 id="blocks-title" hidden { "Its blocks and slices, in the order of the ports, filled as far as their ports are used" }
                            div.boxes id="blocks" role="toolbar" aria-labelledby="blocks-title" {}
                            (table("address", "Subscribers of the selected address", &["Subscriber", "VRF", "Pool", "Mappings", "Ports of its own (used)"]))
                        } @else {
                            p.hint { "Which subscriber has what, the search and the explanation of packets need a user with the role audit." }
                        }
                    }
                    section aria-labelledby="drops-title" {
                        h2 id="drops-title" { "Dropped packets" }
                        (table("drops", "Drops by reason, most frequent first", &["Reason", "Packets", "A second", "Meaning", "What to do"]))
                    }
                    section aria-labelledby="workers-title" {
                        h2 id="workers-title" { "Workers" }
                        (table("workers", "Workers", &["Worker", "CPU", "Busy", "Longest round", "Received", "Forwarded", "Dropped", "Sessions"]))
                    }
                    @if may(Role::Audit) {
                        section aria-labelledby="find-title" {
                            h2 id="find-title" { "Search: who has, or had, an address" }
                            form id="find" {
                                (field("endpoint", "Address, or address:port, of either side", "203.0.113.7:41233", true))
                                label for="transport" { "Protocol" }
                                select id="transport" name="transport" {
                                    option value="" { "any" } option { "udp" } option { "tcp" } option { "icmp" }
                                }
                                (field("at", "Time (empty: now)", "2026-05-03T21:04:17+02:00", false))
                                (field("case", "Case, for the audit log", "", false))
                                button { "Search" }
                            }
                            (table("found", "Holders", &["Holder", "VRF", "External", "Internal", "Answer"]))
                            pre id="notes" aria-live="polite" {}
                        }
                    }
                    @if may(Role::Audit) {
                        section aria-labelledby="why-title" {
                            h2 id="why-title" { "Why: what would happen to a packet" }
                            form id="why" {
                                label for="protocol" { "Protocol" }
                                select id="protocol" name="protocol" {
                                    option { "udp" } option { "tcp" } option { "icmp" }
                                }
                                (field("source", "Source", "100.64.0.7:5000", true))
                                (field("destination", "Destination", "198.51.100.1:443", true))
                                (field("vrf", "VRF of a packet from inside, if addresses overlap", "default", false))
                                (field("b4", "B4, if it comes in a softwire", "2001:db8:c:100::1", false))
                                label.check { input type="checkbox" id="inbound" name="inbound"; " from outside" }
                                button { "Explain" }
                            }
                            p id="unexplained" aria-live="polite" {}
                            (table("steps", "Steps to the verdict", &["Step", "Decision", "Grounds"]))
                        }
                    }
                    @if may(Role::Operate) {
                        section aria-labelledby="drain-title" {
                            h2 id="drain-title" { "Drain: leave the routing before a stop" }
                            form id="drain" {
                                p id="announced" { "connecting" }
                                p id="left" {}
                                button id="drain-begin" value="drain" disabled { "Drain" }
                                button id="drain-undo" value="undo" disabled { "Undo the drain" }
                                p id="drained" aria-live="polite" {}
                            }
                        }
                        section aria-labelledby="change-title" {
                            h2 id="change-title" { "Change the configuration" }
                            form id="change" {
                                label for="text" { "The whole configuration (TOML)" }
                                textarea id="text" name="text" rows="12" spellcheck="false" required {}
                                button value="plan" { "Plan" }
                                (table("differences", "Differences to the running configuration", &["Object", "Now", "Then", "Takes effect"]))
                                (table("effects", "What the change does to each pool", &["Pool", "Effect", "Number"]))
                                pre id="changed" aria-live="polite" {}
                                label.check { input type="checkbox" id="save" name="save"; " also write it to the file" }
                                button id="reload" value="reload" disabled { "Reload" }
                                button value="rollback" formnovalidate { "Roll back the last reload" }
                            }
                        }
                    }
                }
                script src="uplot.js" {}
                script src="page.js" {}
            }
        }
    };
    Html(page.into_string())
}
