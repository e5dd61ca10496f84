//! Draws latency percentiles as SVG: percentile on the x axis, microseconds on the y axis, both logarithmic.
//!
//! Written by hand: two axes and a few lines need no plotting crate.

use std::fmt::Write;

use super::latency::LatencyHistogram;

const WIDTH_PX: f64 = 860.0;
const HEIGHT_PX: f64 = 480.0;
const LEFT_MARGIN_PX: f64 = 80.0;
const RIGHT_MARGIN_PX: f64 = 20.0;
const TOP_MARGIN_PX: f64 = 40.0;
const BOTTOM_MARGIN_PX: f64 = 60.0;

/// Colours that most colour-blind readers can tell apart (Okabe and Ito).
const LINE_COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Percentiles with a mark on the x axis.
const PERCENTILE_MARKS: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99];

/// One line of the plot.
pub struct PlotLine<'a> {
    pub label: String,
    pub histogram: &'a LatencyHistogram,
}

/// Renders the plot with a title.
pub fn render_svg(title: &str, lines: &[PlotLine<'_>]) -> String {
    let highest = lines.iter().map(|line| line.histogram.max_us()).fold(10.0, f64::max);
    let lowest = lines.iter().map(|line| line.histogram.quantile_us(0.0)).fold(highest, f64::min).max(0.1);
    let axis = LatencyAxis { low: lowest.log10().floor(), high: highest.log10().ceil() };
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH_PX} {HEIGHT_PX}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT_MARGIN_PX}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escape_xml(title)
    );
    draw_axes(&mut out, &axis);
    for (number, line) in lines.iter().enumerate() {
        draw_curve(&mut out, &axis, number, line);
    }
    out.push_str("</svg>\n");
    out
}

/// The y axis: powers of ten, from `low` to `high`.
struct LatencyAxis {
    low: f64,
    high: f64,
}

impl LatencyAxis {
    fn latency_y(&self, us: f64) -> f64 {
        let share = (us.max(1e-3).log10() - self.low) / (self.high - self.low).max(1.0);
        HEIGHT_PX - BOTTOM_MARGIN_PX - share.clamp(0.0, 1.0) * (HEIGHT_PX - TOP_MARGIN_PX - BOTTOM_MARGIN_PX)
    }
}

/// The x coordinate of a percentile. Each further nine takes the same width.
fn percentile_x(percentile: f64) -> f64 {
    let nines = -(1.0 - percentile / 100.0).max(1e-5).log10();
    LEFT_MARGIN_PX + nines / 5.0 * (WIDTH_PX - LEFT_MARGIN_PX - RIGHT_MARGIN_PX)
}

fn draw_axes(out: &mut String, axis: &LatencyAxis) {
    let (bottom, right) = (HEIGHT_PX - BOTTOM_MARGIN_PX, WIDTH_PX - RIGHT_MARGIN_PX);
    for mark in PERCENTILE_MARKS {
        let at = percentile_x(mark);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{TOP_MARGIN_PX}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{mark}%</text>",
            bottom + 18.0
        );
    }
    let mut power = axis.low;
    while power <= axis.high {
        let at = axis.latency_y(10_f64.powf(power));
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT_MARGIN_PX}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT_MARGIN_PX - 8.0,
            at + 4.0,
            format_latency(10_f64.powf(power))
        );
        power += 1.0;
    }
}

fn draw_curve(out: &mut String, axis: &LatencyAxis, number: usize, line: &PlotLine<'_>) {
    let colour = LINE_COLOURS[number % LINE_COLOURS.len()];
    let mut points = String::new();
    for step in 0..=200 {
        // Even steps in nines, like the axis: as many points between 99 and 99.9 as between 0 and 90.
        let quantile = 1.0 - 10_f64.powf(-f64::from(step) / 40.0);
        let _ = write!(
            points,
            "{:.1},{:.1} ",
            percentile_x(quantile * 100.0),
            axis.latency_y(line.histogram.quantile_us(quantile))
        );
    }
    let below = f64::from(u32::try_from(number).unwrap_or(0));
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
        points.trim_end(),
        LEFT_MARGIN_PX + 12.0,
        TOP_MARGIN_PX + 18.0 + 16.0 * below,
        escape_xml(&line.label)
    );
}

fn format_latency(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", us / 1e6),
        us if us >= 1e3 => format!("{} ms", us / 1e3),
        us => format!("{us} us"),
    }
}

/// Escapes text for XML: a label contains a path that the user chose.
fn escape_xml(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).fold(String::new(), |mut out, c| {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c => out.push(c),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_picture_has_a_line_for_each_distribution_and_no_foreign_markup() {
        let mut histogram = LatencyHistogram::new().unwrap();
        (1..=10_000).for_each(|us| histogram.record(Duration::from_micros(us)));
        let label = |text: &str| PlotLine { label: text.into(), histogram: &histogram };
        let picture = render_svg("a title", &[label("acquire <b>&"), label("pair")]);
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert!(picture.contains("acquire &lt;b&gt;&amp;"), "{picture}");
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }

    #[test]
    fn nothing_measured_is_still_a_picture() {
        let histogram = LatencyHistogram::new().unwrap();
        let picture = render_svg("a title", &[PlotLine { label: "none".into(), histogram: &histogram }]);
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }

    #[test]
    fn each_nine_takes_the_same_room() {
        let steps = [
            percentile_x(90.0) - percentile_x(0.0),
            percentile_x(99.0) - percentile_x(90.0),
            percentile_x(99.9) - percentile_x(99.0),
        ];
        assert!(steps.iter().all(|step| (step - steps[0]).abs() < 1e-6), "{steps:?}");
    }
}
