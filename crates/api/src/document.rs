//! The OpenAPI document: what the handlers' attributes do not say by themselves.

use utoipa::Modify;
use utoipa::OpenApi;
use utoipa::openapi::ContentBuilder;
use utoipa::openapi::Object;
use utoipa::openapi::ObjectBuilder;
use utoipa::openapi::Ref;
use utoipa::openapi::RefOr;
use utoipa::openapi::ResponseBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::path::ParameterBuilder;
use utoipa::openapi::path::ParameterIn;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::schema::ArrayItems;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::schema::Type;
use utoipa::openapi::security::HttpAuthScheme;
use utoipa::openapi::security::HttpBuilder;
use utoipa::openapi::security::SecurityScheme;

use crate::access::CASE_HEADER;
use crate::access::CSRF_HEADER;

/// The head of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Natrix",
        description = "A carrier-grade NAT. Everything that the command `natrix` can do with a running instance."
    ),
    components(schemas(control::TcpSegment, crate::event_log::ExportFormat)),
    modifiers(&Login),
    security(("bearer" = []), ("basic" = []), ("certificate" = []))
)]
pub(crate) struct Document;

struct Login;

impl Modify for Login {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = |scheme| SecurityScheme::Http(HttpBuilder::new().scheme(scheme).build());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", scheme(HttpAuthScheme::Bearer));
        components.add_security_scheme("basic", scheme(HttpAuthScheme::Basic));
        let description = Some("The common name is the user's name (`http.tls.client_authorities`)".to_owned());
        components.add_security_scheme("certificate", SecurityScheme::MutualTls { description, extensions: None });
    }
}

/// What each status of a refused or failed request means.
const ANY_REQUEST: [(&str, &str); 11] = [
    ("400", "A wrong parameter, or a request that is not HTTP"),
    ("401", "No login, or a wrong one"),
    ("403", "A login whose role does not suffice, or a change or lookup that a foreign page sent"),
    ("414", "An address that is too long"),
    ("421", "A name that is not this server's"),
    ("422", "The instance refused the request"),
    ("429", "Too many requests, or wrong logins, of one client"),
    ("431", "Headers that are too large"),
    ("500", "A fault of this program"),
    ("503", "There is no instance, or too many requests wait"),
    ("504", "The instance does not answer in time"),
];
/// The same for requests with a body.
const WITH_BODY: [(&str, &str); 2] = [("408", "A body that takes too long"), ("413", "A body that is too large")];

/// Completes the document of all paths.
pub(crate) fn complete(document: &mut utoipa::openapi::OpenApi) {
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    name_statuses(document);
    allow_few(document);
}

/// Replaces the ranges of statuses in the document by the statuses themselves, so that clients and
/// tests know which to expect.
fn name_statuses(document: &mut utoipa::openapi::OpenApi) {
    for item in document.paths.paths.values_mut() {
        let changes = item.post.as_mut().map(|operation| (operation, true));
        let reads = item.get.as_mut().map(|operation| (operation, false));
        for (operation, has_body) in changes.into_iter().chain(reads) {
            let all = &mut operation.responses.responses;
            let ranges = [all.remove("4XX"), all.remove("5XX")];
            let Some(RefOr::T(form)) = ranges.into_iter().flatten().next() else { continue };
            for (status, meaning) in ANY_REQUEST.iter().chain(WITH_BODY.iter().filter(|_| has_body)) {
                let mut own = form.clone();
                (*meaning).clone_into(&mut own.description);
                all.entry((*status).to_owned()).or_insert(RefOr::T(own));
            }
        }
    }
}

/// Counts of a plan or rule are null where there are few, for users that may not look subscribers
/// up.
fn allow_few(document: &mut utoipa::openapi::OpenApi) {
    let schemas = document.components.iter_mut().flat_map(|components| components.schemas.iter_mut());
    for (name, schema) in schemas {
        let RefOr::T(Schema::Object(object)) = schema else { continue };
        for (key, property) in &mut object.properties {
            match (name.as_str(), key.as_str(), property) {
                ("PoolPlan" | "PerProtocol", _, RefOr::T(Schema::Object(property))) => allow_null(property),
                ("Rule", "target_hits", RefOr::T(Schema::Array(list))) => {
                    if let ArrayItems::RefOrSchema(items) = &mut list.items
                        && let RefOr::T(Schema::Object(item)) = items.as_mut()
                    {
                        allow_null(item);
                    }
                }
                _ => {}
            }
        }
    }
}

fn allow_null(number: &mut Object) {
    if number.schema_type == SchemaType::Type(Type::Integer) {
        number.schema_type = SchemaType::Array(vec![Type::Integer, Type::Null]);
    }
}

/// The operations of a path.
pub(crate) fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.post].into_iter().flatten()
}

/// Leaves each list of a path the filters that it takes, and adds the headers of requests.
pub(crate) fn complete_parameters(item: &mut PathItem) {
    item.get.iter_mut().for_each(|operation| complete_operation(operation, false));
    item.post.iter_mut().for_each(|operation| complete_operation(operation, true));
}

fn complete_operation(operation: &mut Operation, is_change: bool) {
    let list = operation.operation_id.as_deref().and_then(control::filters_of);
    let parameters = operation.parameters.get_or_insert_default();
    if let Some(takes) = list {
        parameters.retain(|one| takes.contains(&one.name.as_str()) || !control::is_filter(&one.name));
    }
    let text = || ObjectBuilder::new().schema_type(Type::String).build();
    let header = |name: &str, about: &str| {
        let header = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Header);
        header.description(Some(about)).schema(Some(text())).build()
    };
    if parameters.iter().any(|one| one.name == "case") {
        parameters.push(header(CASE_HEADER, "What the lookup is for, as `case` of the query, which comes first"));
    }
    if is_change {
        let about = "Needed with a client certificate or Basic, which browsers send by themselves: `client` of a \
                     client that is no browser, or the token in the page";
        parameters.push(header(CSRF_HEADER, about));
    }
}

/// Names the role that the paths need, and the refusals of clients without it.
pub(crate) fn name_role(document: &mut utoipa::openapi::OpenApi, role: &str) {
    let refused = |description: String| {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        RefOr::T(ResponseBuilder::new().description(description).content("application/json", body).build())
    };
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            let responses = &mut operation.responses.responses;
            responses.insert("401".to_owned(), refused("No login, or a wrong one".to_owned()));
            responses.insert("403".to_owned(), refused(format!("Needs the role: {role}")));
        }
    }
}
