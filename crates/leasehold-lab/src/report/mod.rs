//! The report of a lab: one HTML file that needs no network and no script.
//!
//! Each act has a picture and, below it, the same as a table. The picture has a text of its own for those who cannot see
//! it. Shapes tell what colours tell.

mod picture;

use std::fmt::Write as _;

use crate::print::seconds;
use crate::timeline::{ActKind, EntryTone, LabAct, LabTimeline};

const STYLE: &str = include_str!("report.css");

/// The whole page.
pub fn page(timeline: &LabTimeline) -> String {
    let (lab, title) = (escape(timeline.lab), escape(timeline.title));
    let mut html = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n");
    let _ = writeln!(html, "<title>leasehold lab {lab}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>");
    let _ = writeln!(html, "<h1>leasehold lab {lab}</h1>\n<p>{title}</p>");
    let tone = if timeline.missing.is_empty() { "seen" } else { "seen missing" };
    let _ = writeln!(html, "<p class=\"{tone}\"><strong>{}</strong></p>", escape(&timeline.sentence));
    html.push_str(LEGEND);
    html.push_str("<nav aria-label=\"Acts\">\n<ol>\n");
    for (index, act) in timeline.acts.iter().enumerate() {
        let _ = writeln!(html, "<li><a href=\"#act-{}\">{}: {}</a></li>", index + 1, kind(act), escape(&act.title));
    }
    html.push_str("</ol>\n</nav>\n");
    for (index, act) in timeline.acts.iter().enumerate() {
        write_act(&mut html, index + 1, act);
    }
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

const LEGEND: &str = "<ul class=\"legend\">\n\
    <li><span class=\"key belief\" aria-hidden=\"true\"></span> believed to hold</li>\n\
    <li><span class=\"key pause\" aria-hidden=\"true\"></span> stopped, or cut off</li>\n\
    <li><span class=\"key-text admitted\" aria-hidden=\"true\">●</span> write admitted</li>\n\
    <li><span class=\"key-text wrong\" aria-hidden=\"true\">▲</span> write admitted that should not have been</li>\n\
    <li><span class=\"key-text fenced\" aria-hidden=\"true\">✕</span> write fenced</li>\n</ul>\n";

fn write_act(html: &mut String, number: usize, act: &LabAct) {
    let class = match act.kind {
        ActKind::Failure => "failure",
        ActKind::Cure => "cure",
    };
    let _ = writeln!(html, "<section id=\"act-{number}\" class=\"{class}\" aria-labelledby=\"heading-{number}\">");
    let _ = writeln!(html, "<h2 id=\"heading-{number}\">{number}. {}: {}</h2>", kind(act), escape(&act.title));
    if !act.actors().is_empty() {
        let label = format!("Picture of act {number}, scrolls sideways on a small window");
        let _ = writeln!(html, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">");
        html.push_str(&picture::draw_act(number, act));
        html.push_str("</div>\n");
    }
    let label = format!("Timeline of act {number}, scrolls sideways on a small window");
    let _ = writeln!(html, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">\n<table>");
    html.push_str("<thead><tr><th scope=\"col\">Time, s</th><th scope=\"col\">Actor</th><th scope=\"col\">Does</th>");
    html.push_str("<th scope=\"col\">Believes</th><th scope=\"col\">Verdict</th></tr></thead>\n<tbody>\n");
    for entry in &act.entries {
        let tone = match entry.tone {
            EntryTone::Plain => "plain",
            EntryTone::Good => "good",
            EntryTone::Bad => "bad",
        };
        let cells = [seconds(entry.at), entry.actor.clone(), entry.does.clone(), entry.believes.clone()];
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = writeln!(html, "<tr>{cells}<td class=\"{tone}\">{}</td></tr>", escape(&entry.verdict));
    }
    html.push_str("</tbody>\n</table>\n</div>\n</section>\n");
}

fn kind(act: &LabAct) -> &'static str {
    match act.kind {
        ActKind::Failure => "The failure",
        ActKind::Cure => "The cure",
    }
}

/// Text that stands between tags or in an attribute.
fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<b>\"a\" & 'b'\n"), "&lt;b&gt;&quot;a&quot; &amp; &#39;b&#39; ");
    }
}
