//! The payment page of the demo provider: plain HTML, no script.

use leasehold_boxoffice::provider::script::ScriptedPayment;

/// The buttons, and their labels.
const PAYMENT_BUTTONS: [(&str, &str); 4] = [
    ("approve", "Pay now"),
    ("authorise", "Let the shop take it after the sale"),
    ("decline", "The card is declined"),
    ("back", "Cancel and go back"),
];

/// The page.
pub fn render_page(payment: &ScriptedPayment) -> String {
    let amount = format!("{}.{:02} {}", payment.amount / 100, payment.amount % 100, escape_html(&payment.currency));
    let button = |(act, label): &(&str, &str)| format!("<button name=\"act\" value=\"{act}\">{label}</button>\n");
    let buttons: String = PAYMENT_BUTTONS.iter().map(button).collect();
    html_document(&format!(
        "<h1>Test payment provider</h1>\n<p>{amount} for {} seats or places. This is play money.</p>\n\
         <form method=\"post\">\n{buttons}</form>",
        payment.tokens.len()
    ))
}

/// The page without a return URL.
pub fn done_page() -> String {
    html_document("<h1>Done</h1>\n<p>You can close this page and go back to the shop.</p>")
}

fn html_document(body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Test payment provider</title>\n\
         <style>body{{font:1rem/1.5 system-ui;max-width:30rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}}\
         button{{display:block;width:100%;margin:.5rem 0;padding:.75rem;font:inherit}}</style>\n{body}\n</html>\n"
    )
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
