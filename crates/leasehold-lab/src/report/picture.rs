//! The picture of an act, as SVG: a row for each actor with the spans in which it believed to hold, and its writes.

use std::fmt::Write as _;
use std::time::Duration;

use super::escape;
use crate::print::seconds;
use crate::timeline::{LabAct, WriteFate, WriteMark};

const WIDTH: f64 = 720.0;
const LABEL_WIDTH: f64 = 84.0;
const RIGHT_MARGIN: f64 = 16.0;
const TOP_MARGIN: f64 = 6.0;
const AXIS_HEIGHT: f64 = 24.0;
const MAX_TICKS: f64 = 8.0;
/// Many rows are drawn lower than few.
const ROW_HEIGHTS: [f64; 2] = [34.0, 20.0];
const MANY_ROWS: usize = 8;

/// The SVG of an act, with a text for those who do not see it.
pub fn draw_act(number: usize, act: &LabAct) -> String {
    let actors = act.actors();
    let row_height = ROW_HEIGHTS[usize::from(actors.len() > MANY_ROWS)];
    let canvas = Canvas { act, row_height, rows_end: TOP_MARGIN + row_height * actors.len() as f64 };
    let height = canvas.rows_end + AXIS_HEIGHT;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"picture-{number} text-{number}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n<title id=\"picture-{number}\">Who believed to hold when, act {number}</title>\n\
         <desc id=\"text-{number}\">{}</desc>\n<defs><pattern id=\"hatch-{number}\" width=\"6\" height=\"6\" \
         patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" \
         y2=\"6\"/></pattern></defs>\n",
        escape(&describe_act(act))
    );
    canvas.draw_axis(&mut svg);
    for (row, actor) in actors.iter().enumerate() {
        canvas.draw_row(&mut svg, number, row, actor);
    }
    svg.push_str("</svg>\n");
    svg
}

struct Canvas<'a> {
    act: &'a LabAct,
    row_height: f64,
    rows_end: f64,
}

impl Canvas<'_> {
    fn x(&self, at: Duration) -> f64 {
        let share = at.as_secs_f64() / self.act.lasted.as_secs_f64().max(0.001);
        LABEL_WIDTH + share.min(1.0) * (WIDTH - LABEL_WIDTH - RIGHT_MARGIN)
    }

    fn draw_axis(&self, svg: &mut String) {
        let lasted = self.act.lasted.as_secs_f64().max(0.001);
        let step = tick_step(lasted);
        let mut tick = 0.0;
        while tick <= lasted {
            let x = self.x(Duration::from_secs_f64(tick));
            let (end, text) = (self.rows_end, self.rows_end + 16.0);
            let label = (tick * 1e6).round() / 1e6;
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP_MARGIN}\" x2=\"{x:.1}\" y2=\"{end:.1}\"/>\
                 <text class=\"axis\" x=\"{x:.1}\" y=\"{text:.1}\" text-anchor=\"middle\">{label} s</text>"
            );
            tick += step;
        }
    }

    fn draw_row(&self, svg: &mut String, number: usize, row: usize, actor: &str) {
        let top = TOP_MARGIN + self.row_height * row as f64 + 3.0;
        let height = self.row_height - 6.0;
        let middle = top + height / 2.0;
        let name = escape(actor);
        let _ = writeln!(svg, "<g><text x=\"4\" y=\"{:.1}\">{name}</text>", middle + 4.5);
        for span in self.act.beliefs.iter().filter(|span| span.actor == actor) {
            let (x, end) = (self.x(span.from), self.x(span.to));
            let width = (end - x).max(2.0);
            let told = format!("{name} believed to hold, {} s to {} s", seconds(span.from), seconds(span.to));
            let _ = writeln!(
                svg,
                "<rect class=\"belief\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"3\">\
                 <title>{told}</title></rect>"
            );
        }
        for span in self.act.pauses.iter().filter(|span| span.actor == actor) {
            let (x, end) = (self.x(span.from), self.x(span.to));
            let width = (end - x).max(2.0);
            let told = format!("{name} was {}, {} s to {} s", span.why, seconds(span.from), seconds(span.to));
            let _ = writeln!(
                svg,
                "<rect class=\"pause\" fill=\"url(#hatch-{number})\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
                 height=\"{height:.1}\"><title>{told}</title></rect>"
            );
        }
        for write in self.act.writes.iter().filter(|write| write.actor == actor) {
            self.draw_write(svg, write, middle);
        }
        svg.push_str("</g>\n");
    }

    fn draw_write(&self, svg: &mut String, write: &WriteMark, y: f64) {
        let x = self.x(write.at);
        let told = format!("<title>{}</title>", escape(&describe_write(write)));
        let size = if self.row_height > 25.0 { 8.0 } else { 6.0 };
        let (left, right, top, bottom) = (x - size, x + size, y - size, y + size);
        let _ = match write.fate {
            WriteFate::Admitted => {
                writeln!(svg, "<circle class=\"admitted\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{size}\">{told}</circle>")
            }
            WriteFate::WronglyAdmitted => writeln!(
                svg,
                "<path class=\"wrong\" d=\"M {x:.1} {top:.1} L {right:.1} {bottom:.1} L {left:.1} {bottom:.1} Z\">{told}</path>"
            ),
            WriteFate::Fenced => writeln!(
                svg,
                "<path class=\"fenced\" d=\"M {left:.1} {top:.1} L {right:.1} {bottom:.1} M {left:.1} {bottom:.1} L {right:.1} \
                 {top:.1}\">{told}</path>"
            ),
        };
    }
}

/// The picture in words.
fn describe_act(act: &LabAct) -> String {
    let beliefs = act.beliefs.iter().map(|span| {
        format!("{} believed to hold from {} s to {} s.", span.actor, seconds(span.from), seconds(span.to))
    });
    let pauses = act.pauses.iter().map(|span| {
        format!("{} was {} from {} s to {} s.", span.actor, span.why, seconds(span.from), seconds(span.to))
    });
    let writes = act.writes.iter().map(describe_write);
    beliefs.chain(pauses).chain(writes).collect::<Vec<_>>().join(" ")
}

fn describe_write(write: &WriteMark) -> String {
    let fate = match write.fate {
        WriteFate::Admitted => "admitted",
        WriteFate::WronglyAdmitted => "admitted, and should not have been",
        WriteFate::Fenced => "fenced",
    };
    format!("{} wrote at {} s: {fate}.", write.actor, seconds(write.at))
}

/// Seconds between two ticks: 1, 2 or 5 of some power of ten.
fn tick_step(lasted: f64) -> f64 {
    let rough = lasted / MAX_TICKS;
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough).unwrap_or(rough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for (lasted, step) in [(2.6, 0.5), (0.4, 0.05), (8.0, 1.0), (55.0, 10.0)] {
            assert!((tick_step(lasted) - step).abs() < 1e-9, "{lasted}: {}", tick_step(lasted));
        }
    }
}
