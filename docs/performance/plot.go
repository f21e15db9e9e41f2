// Performance draws the cost of a placement against the number of NUMA nodes, from the output of the benchmark:
//
//	go test ./pkg/memorymanager -run '^$' -bench 'Cycle/mem' -benchmem | go run ./docs/performance > docs/performance/cycle.svg
package main

import (
	"bufio"
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

// point is one measured cycle.
type point struct{ nodes, nanoseconds float64 }

// kubelet are the kubelet's own medians, measured with the same cycle on the same kind of machine (k8s.io/kubernetes
// v1.36.3, one memory type, 1,000 containers). It takes no more than 16 nodes in any useful time.
var kubelet = []point{{8, 393e3}, {16, 167e6}}

var line = regexp.MustCompile(`^BenchmarkCycle/mem/numa=(\d+)/existing=1000/types=(\d+)/spread\S*\s+\d+\s+([\d.]+) ns/op`)

func main() {
	series, err := read(os.Stdin)
	if err == nil {
		err = draw(os.Stdout, series)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		os.Exit(1)
	}
}

// read collects the medians of the runs with 1,000 existing containers, by number of memory types.
func read(from io.Reader) (map[int][]point, error) {
	runs := map[[2]int][]float64{}
	scanner := bufio.NewScanner(from)
	for scanner.Scan() {
		fields := line.FindStringSubmatch(scanner.Text())
		if fields == nil {
			continue
		}
		nodes, _ := strconv.Atoi(fields[1]) // the expression has matched digits
		types, _ := strconv.Atoi(fields[2])
		nanoseconds, err := strconv.ParseFloat(fields[3], 64)
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", scanner.Text(), err)
		}
		runs[[2]int{types, nodes}] = append(runs[[2]int{types, nodes}], nanoseconds)
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("the input has no line of BenchmarkCycle/mem with existing=1000")
	}
	series := map[int][]point{}
	for key, values := range runs {
		slices.Sort(values)
		series[key[0]] = append(series[key[0]], point{float64(key[1]), values[len(values)/2]})
	}
	for _, points := range series {
		slices.SortFunc(points, func(a, b point) int { return int(a.nodes - b.nodes) })
	}
	return series, scanner.Err()
}

const width, height, left, top, right, bottom = 720, 400, 70, 20, 150, 50

func x(nodes float64) float64 {
	return left + (math.Log2(nodes)-1)/5*(width-left-right)
}

func y(nanoseconds float64) float64 {
	return height - bottom - (math.Log10(nanoseconds)-2)/7*(height-top-bottom)
}

func draw(to io.Writer, series map[int][]point) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#fff"/>
`, width, height)
	for i, name := range []string{"100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s"} {
		at := y(math.Pow10(i + 2))
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#e4e7ec"/><text x="%d" y="%.1f" text-anchor="end" fill="#475467">%s</text>
`, left, at, width-right, left-8, at+4, name)
	}
	for _, nodes := range []float64{2, 4, 8, 16, 32, 64} {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#475467">%g</text>
`, x(nodes), height-bottom+18, nodes)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" fill="#475467">NUMA nodes, 1,000 containers placed before</text>
`, (left+width-right)/2, height-12)
	polyline(&b, kubelet, "#d92d20", "kubelet, 1 type")
	colors := []string{"#1570ef", "#099250", "#7a5af8", "#dc6803"}
	for _, types := range slices.Sorted(maps.Keys(series)) {
		polyline(&b, series[types], colors[types%len(colors)], fmt.Sprintf("%d memory type(s)", types))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(to, b.String())
	return err
}

func polyline(b *strings.Builder, points []point, color, name string) {
	var path []string
	for _, p := range points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", x(p.nodes), y(p.nanoseconds)))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>
`, x(p.nodes), y(p.nanoseconds), color)
	}
	last := points[len(points)-1]
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%.1f" y="%.1f" fill="%s">%s</text>
`, strings.Join(path, " "), color, x(last.nodes)+8, y(last.nanoseconds)+4, color, name)
}
