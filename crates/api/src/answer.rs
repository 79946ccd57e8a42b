//! Answers, and errors in the form that all Natrix errors have.

use axum::Extension;
use axum::Json;
use axum::extract::FromRequest;
use axum::extract::FromRequestParts;
use axum::extract::Request;
use axum::extract::rejection::QueryRejection;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use axum::response::Response;
use control::Fault;
use serde::Deserialize;
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

/// A refused or failed request.
#[derive(Clone, Debug)]
pub(crate) struct Refused(Box<Refusal>);

#[derive(Clone, Debug)]
struct Refusal {
    status: StatusCode,
    fault: Fault,
    challenge: bool,
    faults: Vec<control::ConfigFault>,
}

/// The body of an error.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What is wrong, and what to do.
    error: Fault,
    /// Each fault of a configuration that was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    faults: Vec<control::ConfigFault>,
}

impl ErrorBody {
    /// True if it says what is wrong and what to do.
    pub(crate) fn is_complete(&self) -> bool {
        !self.error.object.is_empty() && !self.error.problem.is_empty() && !self.error.remedy.is_empty()
    }
}

impl Refused {
    pub(crate) fn new(status: StatusCode, object: &str, problem: impl Into<String>, remedy: &str) -> Refused {
        Refused::of(status, Fault::new(object, problem, remedy))
    }

    pub(crate) fn of(status: StatusCode, fault: Fault) -> Refused {
        Refused(Box::new(Refusal { status, fault, challenge: false, faults: Vec::new() }))
    }

    /// The same, and a browser asks for name and token.
    pub(crate) fn with_challenge(mut self) -> Refused {
        self.0.challenge = true;
        self
    }

    pub(crate) fn with_faults(mut self, faults: Vec<control::ConfigFault>) -> Refused {
        self.0.faults = faults;
        self
    }

    pub(crate) fn fault(&self) -> &Fault {
        &self.0.fault
    }
}

/// Why a request was refused, beside its answer: for the log of the daemon and the audit log.
#[derive(Clone, Debug)]
pub(crate) struct Problem(pub(crate) String);

/// When to try again (RFC 9110 §10.2.3), in seconds.
fn retry_after(status: StatusCode) -> Option<&'static str> {
    match status {
        StatusCode::TOO_MANY_REQUESTS => Some("60"),
        StatusCode::SERVICE_UNAVAILABLE => Some("5"),
        _ => None,
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refusal { status, fault, challenge, faults } = *self.0;
        let problem = Problem(fault.problem.clone());
        let mut response = (status, Extension(problem), Json(ErrorBody { error: fault, faults })).into_response();
        let challenge = challenge.then_some("Basic realm=\"natrix\", charset=\"UTF-8\"");
        for (name, value) in [(header::WWW_AUTHENTICATE, challenge), (header::RETRY_AFTER, retry_after(status))] {
            if let Some(value) = value {
                response.headers_mut().insert(name, HeaderValue::from_static(value));
            }
        }
        response
    }
}

/// The query of a request; a wrong one is answered as every other error.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, Refused> {
        let query = axum::extract::Query::try_from_uri(&parts.uri);
        let query = query.map_err(|error| Refused::of(StatusCode::BAD_REQUEST, wrong_query(&error, parts)))?;
        Ok(Query(query.0))
    }
}

/// The parameter that cannot be read, why, and its value.
fn wrong_query(error: &QueryRejection, parts: &Parts) -> Fault {
    const REMEDY: &str = "see /api/v1/openapi.json for the parameters";
    let text = error.body_text();
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
    let sent = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parts.uri).map(|query| query.0);
    let sent = sent.unwrap_or_default();
    let value = |name: &str| sent.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    if let Some((_, rest)) = text.split_once("missing field `")
        && let Some((name, _)) = rest.split_once('`')
    {
        return Fault::new(name, "is missing", REMEDY);
    }
    if let Some((_, rest)) = text.split_once("unknown field `")
        && let Some((_, known)) = rest.rsplit_once("expected ")
        && let Some((name, value)) = rest.split_once('`').and_then(|(name, _)| Some((name, value(name)?)))
        && !name.is_empty()
    {
        return Fault::new(name, "is not a parameter of this request", format!("use {known}")).seen(value);
    }
    // `address: is not an address`.
    match text.split_once(": ").and_then(|(name, reason)| Some((name, reason, value(name)?))) {
        Some((name, reason, value)) if !name.is_empty() => {
            // What reads values of ours names the remedy.
            let (problem, remedy) = reason.split_once("; ").unwrap_or((reason, REMEDY));
            Fault::new(name, problem, remedy).seen(value)
        }
        _ => Fault::new("query", text, REMEDY),
    }
}

/// The body of a request as text; another one is answered as every other error.
pub(crate) struct Text(pub(crate) String);

impl<S: Send + Sync> FromRequest<S> for Text {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Text, Refused> {
        let text = String::from_request(request, state).await;
        text.map(Text).map_err(|error| Refused::new(error.status(), "body", error.body_text(), "send UTF-8 text"))
    }
}

#[cfg(test)]
mod tests {
    use control::FindAddress;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Asked {
        address: FindAddress,
        port: Option<u16>,
    }

    #[tokio::test]
    async fn a_wrong_parameter_is_named_with_its_value() {
        let ask = async |query: &str| {
            let request = Request::builder().uri(format!("/find?{query}")).body(axum::body::Body::empty()).unwrap();
            Query::<Asked>::from_request_parts(&mut request.into_parts().0, &()).await
        };
        let Query(asked) = ask("address=203.0.113.7&port=7").await.unwrap();
        assert_eq!((asked.address, asked.port), ("203.0.113.7".parse().unwrap(), Some(7)));
        for (query, object, seen) in [
            ("address=foo", "address", Some("foo")),
            ("address=203.0.113.7&port=70000", "port", Some("70000")),
            ("address=203.0.113.7&ports=7", "ports", Some("7")),
            ("port=7", "address", None),
        ] {
            let refused = ask(query).await.map(|_| ()).unwrap_err();
            let fault = refused.fault();
            assert_eq!((fault.object.as_str(), fault.seen.as_deref()), (object, seen), "{fault}");
            assert!(!fault.problem.contains("deserialize") && !fault.problem.is_empty(), "{fault}");
        }
    }
}
