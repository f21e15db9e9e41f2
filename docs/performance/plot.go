// Performance draws what a benchmark has measured, from its output: the cost of a placement against the number of NUMA nodes, or how long
// creates wait that are asked for at once.
//
//	go test ./pkg/memorymanager -run '^$' -bench 'Cycle/mem' -benchmem | go run ./docs/performance > docs/performance/cycle.svg
//	go test ./plugin -run '^$' -bench Storm -benchtime 3x | go run ./docs/performance > docs/performance/storm.svg
package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

type point struct{ x, y float64 }

type series struct {
	name, color string
	points      []point
}

// axis places values from 0, at its start, to 1. Its marks are values and what is written there.
type axis struct {
	label string
	marks []mark
	place func(value float64) float64
}

type mark struct {
	value float64
	text  string
}

type chart struct {
	x, y  axis
	lines []series
}

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		var c chart
		if c, err = read(string(text)); err == nil {
			_, err = io.WriteString(os.Stdout, c.svg())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		os.Exit(1)
	}
}

func read(text string) (chart, error) {
	if runs := cycle.FindAllStringSubmatch(text, -1); len(runs) > 0 {
		return cycleChart(runs), nil
	}
	if runs := storm.FindAllString(text, -1); len(runs) > 0 {
		return stormChart(runs), nil
	}
	return chart{}, errors.New("the input has no line of BenchmarkCycle/mem with existing=1000, and none of BenchmarkStorm")
}

var cycle = regexp.MustCompile(`(?m)^BenchmarkCycle/mem/numa=(\d+)/existing=1000/types=(\d+)/spread\S*\s+\d+\s+([\d.]+) ns/op`)

// kubelet are the kubelet's own medians, measured with the same cycle on the same kind of machine (k8s.io/kubernetes
// v1.36.3, one memory type, 1,000 containers). It takes no more than 16 nodes in any useful time.
var kubelet = series{"kubelet, 1 type", "#d92d20", []point{{8, 393e3}, {16, 167e6}}}

// cycleChart has the medians of the runs with 1,000 existing containers, by number of memory types.
func cycleChart(runs [][]string) chart {
	c := chart{
		x: axis{label: "NUMA nodes, 1,000 containers placed before", place: func(nodes float64) float64 { return (math.Log2(nodes) - 1) / 5 }},
		y: axis{place: func(nanoseconds float64) float64 { return (math.Log10(nanoseconds) - 2) / 7 }},
	}
	for _, nodes := range []float64{2, 4, 8, 16, 32, 64} {
		c.x.marks = append(c.x.marks, mark{nodes, fmt.Sprint(nodes)})
	}
	for i, name := range []string{"100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"} {
		c.y.marks = append(c.y.marks, mark{math.Pow10(i + 2), name})
	}
	measured := map[float64]map[float64][]float64{} // by types and nodes
	for _, run := range runs {
		types, nodes := number(run[2]), number(run[1])
		if measured[types] == nil {
			measured[types] = map[float64][]float64{}
		}
		measured[types][nodes] = append(measured[types][nodes], number(run[3]))
	}
	c.lines = []series{kubelet}
	colors := []string{"#1570ef", "#099250", "#7a5af8", "#dc6803"}
	for _, types := range slices.Sorted(maps.Keys(measured)) {
		c.lines = append(c.lines, series{fmt.Sprintf("%g memory type(s)", types), colors[int(types)%len(colors)], medians(measured[types])})
	}
	return c
}

var (
	storm      = regexp.MustCompile(`(?m)^BenchmarkStorm\S*\s.*`)
	percentile = regexp.MustCompile(`([\d.]+) (nothing-)?p(\d+)-ns`)
)

// stormChart has the medians of the runs' percentiles: after how long so many of the creates were answered.
func stormChart(runs []string) chart {
	with, without := map[float64][]float64{}, map[float64][]float64{}
	for _, run := range runs {
		for _, field := range percentile.FindAllStringSubmatch(run, -1) {
			to, percent := with, number(field[3])
			if field[2] != "" {
				to = without
			}
			to[percent] = append(to[percent], number(field[1]))
		}
	}
	lines := []series{{"this plugin", "#1570ef", medians(with)}, {"an empty plugin", "#667085", medians(without)}}
	longest := 0.0
	for _, line := range lines {
		longest = max(longest, line.points[len(line.points)-1].y)
	}
	const step = 100e6
	end := math.Ceil(longest/step) * step
	c := chart{
		x:     axis{label: "answered, of 500 creates at once", place: func(percent float64) float64 { return percent / 100 }},
		y:     axis{place: func(nanoseconds float64) float64 { return nanoseconds / end }},
		lines: lines,
	}
	for percent := 0.0; percent <= 100; percent += 20 {
		c.x.marks = append(c.x.marks, mark{percent, fmt.Sprint(percent * 5)})
	}
	for at := 0.0; at <= end; at += step {
		c.y.marks = append(c.y.marks, mark{at, fmt.Sprintf("%g s", at/1e9)})
	}
	return c
}

// number is that of digits that an expression has matched.
func number(digits string) float64 {
	value, _ := strconv.ParseFloat(digits, 64)
	return value
}

// medians of what was measured at each x.
func medians(measured map[float64][]float64) (points []point) {
	for _, x := range slices.Sorted(maps.Keys(measured)) {
		values := slices.Sorted(slices.Values(measured[x]))
		points = append(points, point{x, values[len(values)/2]})
	}
	return points
}

const width, height, left, top, right, bottom = 720, 400, 70, 20, 150, 50

func (c chart) at(p point) (x, y float64) {
	return left + c.x.place(p.x)*(width-left-right), height - bottom - c.y.place(p.y)*(height-top-bottom)
}

func (c chart) svg() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#fff"/>
`, width, height)
	for _, mark := range c.y.marks {
		_, y := c.at(point{1, mark.value})
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#e4e7ec"/><text x="%d" y="%.1f" text-anchor="end" fill="#475467">%s</text>
`, left, y, width-right, left-8, y+4, mark.text)
	}
	for _, mark := range c.x.marks {
		x, _ := c.at(point{mark.value, 1})
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#475467">%s</text>
`, x, height-bottom+18, mark.text)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="#475467">%s</text>
`, (left+width-right)/2, height-12, c.x.label)
	for _, line := range c.lines {
		var path []string
		var x, y float64
		for _, p := range line.points {
			x, y = c.at(p)
			path = append(path, fmt.Sprintf("%.1f,%.1f", x, y))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>
`, x, y, line.color)
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%.1f" y="%.1f" fill="%s">%s</text>
`, strings.Join(path, " "), line.color, x+8, y+4, line.color, line.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
