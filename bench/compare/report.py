"""The comparison's figures as a table and as a picture. Usage: report.py compare.json [--plot FILE]

The JSON holds every value of every round. The form: {"rounds": n, "places": [name], "systems": [{"name", "says"}],
"rows": [{"place", "case", "unit", "values": {system: [one a round]}}], "not_run": [{"place", "system", "why"}]}.
"""

import argparse
import json
import pathlib
import statistics
import sys

YARDSTICK = "memcpy"


def median_of(row, system):
    values = row["values"].get(system)
    return statistics.median(values) if values else None


def ratio_of_medians(row, system, other):
    """None where one of them has no value."""
    value, unit = median_of(row, system), median_of(row, other)
    return value / unit if value is not None and unit else None


def reference_of(result):
    """The column that others are compared with: ibid by the first of its transports."""
    return next((system["name"] for system in result["systems"] if system["name"].startswith("ibid")), None)


def digits(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def cell(row, system, reference):
    """`median (of memcpy, of ibid)`."""
    value = median_of(row, system)
    if value is None:
        return "–"
    if system == YARDSTICK:
        return digits(value)
    of_memcpy, of_ibid = (ratio_of_medians(row, system, other) for other in (YARDSTICK, reference))
    return f"{digits(value)} ({', '.join('–' if ratio is None else f'{ratio:.2f}' for ratio in (of_memcpy, of_ibid))})"


def table(result):
    """Markdown: a row a case, a column a system; what did not run beneath."""
    names, reference = [system["name"] for system in result["systems"]], reference_of(result)
    lines = ["| " + " | ".join(["case", "unit", *names]) + " |", "|" + "---|" * (len(names) + 2)]
    for row in result["rows"]:
        cells = [f"{row['place']}: {row['case']}", row["unit"], *(cell(row, name, reference) for name in names)]
        lines.append("| " + " | ".join(cells) + " |")
    for missing in result["not_run"]:
        lines.append(f"| {missing['place']}: {missing['system']} | not run: {missing['why']} |" + " |" * len(names))
    return "\n".join(lines)


def explained(result):
    lines = [f"Each cell: median of {result['rounds']} round(s) (ratio to memcpy, ratio to {reference_of(result)}). "
             "GB/s: more is better; us: less is better."]
    lines += [f"  {system['name']}: {system['says']}" for system in result["systems"]]
    return "\n".join(lines)


def bars(axes, rows, names, colors):
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        offset = (place - (len(names) - 1) / 2) * width
        for group, row in enumerate(rows):
            value = median_of(row, name)
            if value is None:
                continue
            low, high = min(row["values"][name]), max(row["values"][name])
            axes.bar(group + offset, value, width * 0.92, color=colors[name], label=name if group == 0 else None,
                     yerr=[[value - low], [high - value]], error_kw={"elinewidth": 0.8, "ecolor": "#555555"})
            axes.annotate(digits(value), (group + offset, 0), xytext=(0, 4), textcoords="offset points", rotation=90,
                          ha="center", va="bottom", fontsize=7.5, color="white", fontweight="bold")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", linewidth=0.4, color="#cccccc")


def group_label(row):
    words = row["case"].split(", ")[1:]
    yardstick = median_of(row, YARDSTICK)
    below = f"\nmemcpy {yardstick:.1f}" if yardstick is not None and row["unit"] == "GB/s" else ""
    return f"{row['place']}\n{', '.join(words)}{below}"


def plot(result, path):
    """Bars from 0 on linear axes. memcpy is written under each group: its bar would dwarf the others."""
    import matplotlib  # only here: the table needs none

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [system["name"] for system in result["systems"] if system["name"] != YARDSTICK]
    palette = ["#0b5fa5", "#3f8fd2", "#7db8e8", "#c44536", "#e08e45", "#5b8c5a", "#7a6c9d", "#888888"]
    shared = [name for name in names if not name.startswith("ibid")]
    mine = [name for name in names if name.startswith("ibid")]
    colors = {**dict(zip(mine, palette[:3])), **dict(zip(shared, palette[3:]))}
    panels = [("Publish, GB/s (more is better)", [row for row in result["rows"] if row["case"].startswith("publish")]),
              ("Fetch, GB/s (more is better)", [row for row in result["rows"] if row["case"].startswith("fetch,")]),
              ("Fetch of one block, us (less is better)", [row for row in result["rows"] if row["unit"] == "us"])]
    figure, all_axes = pyplot.subplots(len(panels), 1, figsize=(11, 12), layout="constrained")
    for axes, (title, rows) in zip(all_axes, panels):
        bars(axes, rows, names, colors)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xticks(range(len(rows)), [group_label(row) for row in rows], fontsize=8)
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(names), frameon=False)
    figure.supxlabel(f"Medians of {result['rounds']} rounds, lines from the lowest to the highest; {result['cores']} cores shared by all "
                     "clients and the server. memcpy: GB/s of the same bytes.", fontsize=8)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=pathlib.Path)
    parser.add_argument("--plot", help="draw the picture into this file instead")
    options = parser.parse_args()
    result = json.loads(options.json.read_text())
    if options.plot:
        plot(result, options.plot)
    else:
        print(table(result), explained(result), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
