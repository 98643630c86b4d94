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


def ratio(row, system, other):
    """Median of the ratios within each round; None where one of them has no value."""
    pairs = zip(row["values"].get(system, []), row["values"].get(other, []))  # a system that fails drops out for good
    ratios = [value / unit for value, unit in pairs if unit]
    return statistics.median(ratios) if ratios else None


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
    ratios = [ratio(row, system, YARDSTICK), ratio(row, system, reference)]
    return f"{digits(value)} ({', '.join('–' if each is None else f'{each:.2f}' for each in ratios)})"


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
    lines = [f"Each cell: median of {result['rounds']} round(s) (median of the ratios within each round: to memcpy, to "
             f"{reference_of(result) or 'ibid'}). GB/s and 1/s: more is better; us: less is better."]
    lines += [f"  {system['name']}: {system['says']}" for system in result["systems"]]
    return "\n".join(lines)


def bars(axes, rows, names, colors, scale):
    width = 0.84 / len(names)
    for place, name in enumerate(names):
        offset = (place - (len(names) - 1) / 2) * width
        for group, row in enumerate(rows):
            if not row["values"].get(name):
                continue
            values = [value * scale for value in row["values"][name]]
            middle, low, high = statistics.median(values), min(values), max(values)
            axes.bar(group + offset, middle, width * 0.92, color=colors[name], label=name if group == 0 else None,
                     yerr=[[middle - low], [high - middle]], error_kw={"elinewidth": 0.8, "ecolor": "#777777"})
            axes.annotate(digits(middle), (group + offset, high), xytext=(0, 3), textcoords="offset points", rotation=90,
                          ha="center", va="bottom", fontsize=7)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", linewidth=0.4, color="#cccccc")
    axes.set_xticks(range(len(rows)), [group_label(row) for row in rows], fontsize=8)


def group_label(row):
    yardstick = median_of(row, YARDSTICK) if row["unit"] == "GB/s" else None
    below = f"\nmemcpy {yardstick:.1f} GB/s" if yardstick is not None else ""
    return f"{row['place']}\n{row['case'].split(', ', 1)[1]}{below}"


def panels_of(result):
    """Title, rows, factor from the rows' unit to the title's."""
    def rows(begin, unit, middle=""):
        return [row for row in result["rows"] if row["case"].startswith(begin) and row["unit"] == unit and middle in row["case"]]

    every = [("Publish, GB/s: more is better", rows("publish", "GB/s"), 1),
             ("Fetch, GB/s: more is better", rows("fetch", "GB/s"), 1),
             ("Fetch of one block on an idle system, ms: less is better", rows("fetch of one", "us", "idle"), 1e-3),
             ("Fetch of one block under load, ms: less is better", rows("fetch of one", "us", "rate"), 1e-3)]
    return [panel for panel in every if panel[1]]


def plot(result, path):
    """Bars from 0 on linear axes. memcpy is written under each group: its bar would dwarf the others."""
    import matplotlib  # only here: the table needs none

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [system["name"] for system in result["systems"] if system["name"] != YARDSTICK]
    ours = [name for name in names if name.startswith("ibid")]
    others = [name for name in names if name not in ours]
    colors = {**dict(zip(ours, ["#0b5fa5", "#3f8fd2", "#7db8e8"])),
              **dict(zip(others, ["#c44536", "#e08e45", "#5b8c5a", "#7a6c9d", "#888888"]))}
    panels = panels_of(result)
    figure, all_axes = pyplot.subplots(len(panels), 1, figsize=(10, 3.4 * len(panels)), layout="constrained", squeeze=False)
    for axes, (title, rows, scale) in zip(all_axes[:, 0], panels):
        bars(axes, rows, names, colors, scale)
        axes.set_title(title, loc="left", fontsize=11)
    handles, labels = all_axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(names), frameon=False)
    figure.supxlabel(f"Medians of {result['rounds']} rounds; lines from the lowest to the highest. {result['cores']} cores, shared by the "
                     "clients and the server.", fontsize=8)
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
