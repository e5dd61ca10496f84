//! Holds real answers to the description of the API. Knows as much of JSON Schema as the description uses.

use serde_json::Value;

/// The description.
pub fn description() -> Value {
    serde_json::from_str(crate::http::openapi::OPENAPI_JSON).unwrap()
}

/// Fails unless the value is what the named schema says.
#[track_caller]
pub fn holds(value: &Value, name: &str) {
    let api = description();
    let schema = &api["components"]["schemas"][name];
    assert!(schema.is_object(), "there is no schema {name}");
    if let Err(why) = check(&api, schema, value) {
        panic!("{name}: {why} in {value}");
    }
}

/// Fails unless the value is what this response of an operation is described as.
#[track_caller]
pub fn answers(value: &Value, operation: &str, status: u16) {
    let api = description();
    let (method, path) = operation.split_once(' ').unwrap();
    let response = &api["paths"][path][method.to_lowercase()]["responses"][status.to_string()];
    let shared = response["$ref"].as_str().and_then(|reference| api.pointer(&reference[1..]));
    let response = shared.unwrap_or(response);
    let kind = if status < 400 { "application/json" } else { "application/problem+json" };
    let schema = &response["content"][kind]["schema"];
    assert!(schema.is_object(), "{operation} has no {status} with {kind}");
    if let Err(why) = check(&api, schema, value) {
        panic!("{operation} {status}: {why} in {value}");
    }
}

fn check(api: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return check(api, api.pointer(&reference[1..]).ok_or(format!("no {reference}"))?, value);
    }
    if let Some(ways) = schema["oneOf"].as_array() {
        let fits = ways.iter().filter(|way| check(api, way, value).is_ok()).count();
        return if fits == 1 { Ok(()) } else { Err(format!("fits {fits} of the ways")) };
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().map(|one| one.as_str().unwrap()).collect(),
        _ => return Err("a schema without a type".into()),
    };
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if !number.is_f64() && types.contains(&"integer") => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.contains(&is) {
        return Err(format!("{value} is {is}, not {types:?}"));
    }
    if schema["additionalProperties"] == true {
        return Ok(());
    }
    if schema["enum"].as_array().is_some_and(|words| !words.contains(value)) {
        return Err(format!("{value} is none of {}", schema["enum"]));
    }
    if value.as_u64().zip(schema["minimum"].as_u64()).is_some_and(|(value, least)| value < least) {
        return Err(format!("{value} is too small"));
    }
    for item in value.as_array().into_iter().flatten() {
        check(api, &schema["items"], item)?;
    }
    let Some(object) = value.as_object() else { return Ok(()) };
    for field in schema["required"].as_array().into_iter().flatten() {
        let field = field.as_str().unwrap();
        object.get(field).ok_or_else(|| format!("{field} is missing"))?;
    }
    for (field, value) in object {
        let inner = schema["properties"].get(field).ok_or_else(|| format!("{field} is not described"))?;
        check(api, inner, value).map_err(|why| format!("{field}: {why}"))?;
    }
    Ok(())
}

/// Goal: the checker is awake.
#[test]
fn what_is_not_described_is_found() {
    let api = description();
    let schema = &api["components"]["schemas"]["Waiter"];
    let holds = |value| check(&api, schema, &value).is_ok();
    assert!(holds(serde_json::json!({"holder": "ada", "waiting_ms": 5})));
    assert!(!holds(serde_json::json!({"holder": "ada"})), "a field is missing");
    assert!(!holds(serde_json::json!({"holder": "ada", "waiting_ms": "5"})), "of another type");
    assert!(!holds(serde_json::json!({"holder": "ada", "waiting_ms": 5, "lease_id": "x"})), "one too many");
}
