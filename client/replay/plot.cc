#include "client/replay/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/format.h"
#include "core/check.h"

namespace ibid {
namespace {

// All in pixels.
constexpr double kPanelWidth = 480;
constexpr double kPanelHeight = 372;
constexpr double kMarginLeft = 64;
constexpr double kMarginRight = 18;
constexpr double kMarginTop = 58;
constexpr double kMarginBottom = 64;
constexpr double kLegendTop = 18;
constexpr double kLegendRowHeight = 22;
constexpr double kLegendSampleWidth = 26;
constexpr double kLegendGap = 22;
constexpr double kCharacterWidth = 7.2;  // of the 12 pixel font, on the wide side
constexpr double kTickLabelWidthMin = 40;
constexpr size_t kTitleCharactersMax = 48;
constexpr size_t kPanelsPerRow = 2;

// Classes c0 to c6 are the policies in their order, over again after the last; the first is the
// one to look at.
constexpr size_t kColorsCount = 7;
constexpr absl::string_view kStyle = R"(<style>
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 14px; font-weight: 600 }
.muted { fill: #59636e }
.paper { fill: #ffffff }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.axis { stroke: #818b98; stroke-width: 1 }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round }
.c0 { stroke: #0969da; stroke-width: 3 } .c1 { stroke: #6e7781 } .c2 { stroke: #bc6c00 }
.c3 { stroke: #1a7f37 } .c4 { stroke: #8250df } .c5 { stroke: #cf222e } .c6 { stroke: #0e7490 }
.min { stroke: #1f2328; stroke-dasharray: 6 4 }
.infinite { stroke: #1f2328; stroke-dasharray: 1 4 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .muted { fill: #9198a1 } .paper { fill: #0d1117 }
  .grid { stroke: #2a313c } .axis { stroke: #656c76 }
  .c0 { stroke: #58a6ff } .c1 { stroke: #9198a1 } .c2 { stroke: #e09b13 } .c3 { stroke: #3fb950 }
  .c4 { stroke: #be8fff } .c5 { stroke: #ff7b72 } .c6 { stroke: #39c5cf }
  .min, .infinite { stroke: #e6edf3 }
}
</style>
)";

struct Line {
  std::string policy;
  std::string style;  // its class
  std::span<const SweepRow> rows;
};

std::vector<Line> LinesOf(std::span<const SweepRow> rows) {
  std::vector<Line> lines;
  while (!rows.empty()) {
    const auto end = std::find_if(rows.begin(), rows.end(), [&](const SweepRow& row) {
      return row.policy != rows[0].policy;
    });
    const auto count = static_cast<size_t>(end - rows.begin());
    const bool is_bound = rows[0].policy == kMinPolicy || rows[0].policy == kInfinitePolicy;
    lines.push_back({rows[0].policy,
                     is_bound ? rows[0].policy : absl::StrCat("c", lines.size() % kColorsCount),
                     rows.first(count)});
    rows = rows.subspan(count);
  }
  return lines;
}

// Names of files may hold anything.
std::string Escaped(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c >= ' ' && c <= '~' ? c : '?';
    }
  }
  return out;
}

std::string Shortened(absl::string_view text) {
  if (text.size() <= kTitleCharactersMax) return std::string(text);
  return absl::StrCat(text.substr(0, kTitleCharactersMax - 3), "...");
}

// 12,031
std::string Grouped(uint64_t number) {
  if (number < 1000) return absl::StrCat(number);
  return absl::StrFormat("%s,%03d", Grouped(number / 1000), number % 1000);
}

void AppendText(double x, double y, absl::string_view anchor, absl::string_view style,
                absl::string_view text, std::string* svg) {
  absl::StrAppendFormat(svg,
                        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n",
                        x, y, anchor, style, Escaped(text));
}

void AppendSegment(double x1, double y1, double x2, double y2, absl::string_view style,
                   std::string* svg) {
  absl::StrAppendFormat(svg,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                        x1, y1, x2, y2, style);
}

// One trace's diagram, with its left upper corner at (left, top).
class Panel {
 public:
  Panel(const Trace& trace, std::span<const SweepRow> rows, double left, double top)
      : trace_(trace),
        lines_(LinesOf(rows)),
        left_(left + kMarginLeft),
        right_(left + kPanelWidth - kMarginRight),
        top_(top + kMarginTop),
        bottom_(top + kPanelHeight - kMarginBottom) {
    x_min_ = lines_[0].rows.front().capacity_fraction;
    x_max_ = lines_[0].rows.back().capacity_fraction;
    if (x_max_ < 2 * x_min_) {
      x_min_ /= 2;
      x_max_ *= 2;
    }
    double y_max = 0;
    for (const SweepRow& row : rows) y_max = std::max(y_max, row.result.token_hit_ratio());
    y_step_ = y_max > 0.5 ? 0.1 : y_max > 0.2 ? 0.05 : 0.02;
    y_max_ = std::max(1.0, std::ceil(y_max / y_step_ + 0.2)) * y_step_;
  }

  void AppendTo(std::string* svg) const {
    AppendText(left_, top_ - 34, "start", "title", Shortened(trace_.name), svg);
    AppendText(
        left_, top_ - 15, "start", "muted",
        absl::StrCat(Grouped(trace_.requests.size()), " requests, ", Grouped(trace_.blocks_count()),
                     " different blocks of ", trace_.block_tokens, " tokens"),
        svg);
    AppendGrid(svg);
    // The first policy is drawn last, above the others.
    for (auto line = lines_.rbegin(); line != lines_.rend(); ++line) AppendLine(*line, svg);
  }

 private:
  double X(double fraction) const {
    return left_ + (right_ - left_) * std::log(fraction / x_min_) / std::log(x_max_ / x_min_);
  }
  double Y(double ratio) const { return bottom_ - (bottom_ - top_) * ratio / y_max_; }

  void AppendGrid(std::string* svg) const {
    for (int i = 0; i * y_step_ < y_max_ + y_step_ / 2; ++i) {
      const double y = Y(i * y_step_);
      AppendSegment(left_, y, right_, y, i == 0 ? "axis" : "grid", svg);
      AppendText(left_ - 8, y + 4, "end", "", absl::StrFormat("%.0f%%", 100 * i * y_step_), svg);
    }
    double label_end = -1;
    for (double decade = std::pow(10, std::floor(std::log10(x_min_))); decade <= x_max_;
         decade *= 10) {
      for (const double fraction : {decade, 2 * decade, 5 * decade}) {
        // The ends of the axis are not exact.
        if (fraction < x_min_ * 0.999 || fraction > x_max_ * 1.001) continue;
        const double x = X(fraction);
        AppendSegment(x, top_, x, bottom_, "grid", svg);
        if (x - label_end < kTickLabelWidthMin) continue;
        label_end = x;
        AppendText(x, bottom_ + 18, "middle", "", absl::StrFormat("%.4g%%", 100 * fraction), svg);
        AppendBytes(fraction, x, svg);
      }
    }
    const double title_y = bottom_ + (lines_[0].rows[0].capacity_bytes > 0 ? 54 : 42);
    AppendText((left_ + right_) / 2, title_y, "middle", "muted",
               "capacity, share of the trace's different blocks", svg);
    absl::StrAppendFormat(svg, "<g transform=\"translate(%.1f %.1f) rotate(-90)\">",
                          left_ - kMarginLeft + 14, (top_ + bottom_) / 2);
    AppendText(0, 0, "middle", "muted", "prompt tokens found", svg);
    absl::StrAppend(svg, "</g>\n");
  }

  // Under the tick of a fraction, if bytes are known.
  void AppendBytes(double fraction, double x, std::string* svg) const {
    const SweepRow& row = lines_[0].rows[0];
    if (row.capacity_bytes == 0) return;
    const uint64_t block_bytes = row.capacity_bytes / row.capacity_blocks;
    const double blocks = fraction * static_cast<double>(trace_.blocks_count());
    AppendText(x, bottom_ + 33, "middle", "muted",
               cli::Bytes(static_cast<uint64_t>(blocks) * block_bytes), svg);
  }

  void AppendLine(const Line& line, std::string* svg) const {
    std::string points;
    for (const SweepRow& row : line.rows) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", X(row.capacity_fraction),
                            Y(row.result.token_hit_ratio()));
    }
    // A single point would not show.
    if (line.rows.size() == 1) {
      const double y = Y(line.rows[0].result.token_hit_ratio());
      points = absl::StrFormat("%.1f,%.1f %.1f,%.1f", left_, y, right_, y);
    }
    absl::StrAppendFormat(svg, "<polyline points=\"%s\" class=\"line %s\"/>\n", points, line.style);
  }

  const Trace& trace_;
  const std::vector<Line> lines_;
  const double left_, right_, top_, bottom_;
  double x_min_ = 0;
  double x_max_ = 0;
  double y_step_ = 0;
  double y_max_ = 0;
};

std::string LegendText(const std::string& policy) {
  if (policy == kMinPolicy) return "min (knows the future)";
  if (policy == kInfinitePolicy) return "infinite cache";
  return policy;
}

// Returns where its last row ends.
double AppendLegend(const std::vector<Line>& lines, double width, std::string* svg) {
  double x = kMarginLeft;
  double y = kLegendTop;
  for (const Line& line : lines) {
    const std::string text = LegendText(line.policy);
    const double item_width =
        kLegendSampleWidth + 6 + kCharacterWidth * static_cast<double>(text.size());
    if (x > kMarginLeft && x + item_width > width - kMarginRight) {
      x = kMarginLeft;
      y += kLegendRowHeight;
    }
    AppendSegment(x, y, x + kLegendSampleWidth, y, absl::StrCat("line ", line.style), svg);
    AppendText(x + kLegendSampleWidth + 6, y + 4, "start", "", text, svg);
    x += item_width + kLegendGap;
  }
  return y + kLegendRowHeight / 2;
}

}  // namespace

std::string SweepSvg(std::span<const Trace> traces, std::span<const SweepRow> rows) {
  IBID_CHECK(!traces.empty() && !rows.empty());
  const size_t columns = std::min(traces.size(), kPanelsPerRow);
  const size_t panel_rows = (traces.size() + columns - 1) / columns;
  const double width = kPanelWidth * static_cast<double>(columns);

  const size_t rows_per_trace = rows.size() / traces.size();
  std::string body;
  const double legend_bottom = AppendLegend(LinesOf(rows.first(rows_per_trace)), width, &body);
  for (size_t t = 0; t < traces.size(); ++t) {
    Panel(traces[t], rows.subspan(t * rows_per_trace, rows_per_trace),
          kPanelWidth * static_cast<double>(t % columns),
          legend_bottom + kPanelHeight * static_cast<double>(t / columns))
        .AppendTo(&body);
  }
  const double height = legend_bottom + kPanelHeight * static_cast<double>(panel_rows);
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n"
      "<title>Share of prompt tokens found in the cache, by capacity and eviction policy</title>\n"
      "%s<rect width=\"100%%\" height=\"100%%\" rx=\"6\" class=\"paper\"/>\n%s</svg>\n",
      width, height, width, height, kStyle, body);
}

}  // namespace ibid
