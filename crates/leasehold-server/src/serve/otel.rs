//! Traces for an OpenTelemetry collector, by OTLP over plain HTTP.
//!
//! Spans of the target `leasehold::call`: one per call of the service, with verb and key id. A thread of the SDK sends
//! batches: a collector that does not answer loses spans and delays nothing.

use std::sync::OnceLock;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use super::config::Config;
use leasehold_support::exit::Failure;

static PROVIDER: OnceLock<SdkTracerProvider> = OnceLock::new();

/// The layer that sends spans, if a collector is named.
///
/// # Errors
///
/// The address of the collector is invalid.
pub fn layer<S>(config: &Config) -> anyhow::Result<Option<impl Layer<S> + Send + Sync + use<S>>>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let Some(otel) = &config.otel else { return Ok(None) };
    if !otel.endpoint.starts_with("http://") {
        return Err(Failure::usage("otel.endpoint begins with http://: run a collector near by, it can speak TLS"));
    }
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}/v1/traces", otel.endpoint.trim_end_matches('/')))
        .build()
        .map_err(|error| Failure::usage(format!("otel.endpoint: {error}")))?;
    let resource = Resource::builder().with_service_name("leasehold").build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let tracer = provider.tracer("leasehold");
    let _ = PROVIDER.set(provider);
    let only_calls = Targets::new().with_target("leasehold::call", LevelFilter::DEBUG);
    Ok(Some(tracing_opentelemetry::layer().with_tracer(tracer).with_filter(only_calls)))
}

/// Sends the remaining spans, within the timeout of the SDK.
pub fn flush() {
    if let Some(provider) = PROVIDER.get() {
        let _ = provider.shutdown();
    }
}
