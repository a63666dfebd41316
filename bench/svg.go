package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
)

// Sizes of a chart in pixels.
const (
	chartWidth = 960
	labelWidth = 360
	barHeight  = 11
	rowGap     = 8
	chartTop   = 64
)

var colors = []string{"#4269d0", "#97bbf5", "#c9c9c9", "#efb118", "#6cc5b0", "#ff725c", "#a463f2"}

// chart returns the report's rows as horizontal bars, in SVG.
func (r *report) chart() []byte {
	most := 0.0
	for _, row := range r.rows {
		for _, v := range row.values {
			most = max(most, v)
		}
	}
	rowHeight := barHeight*len(r.series) + rowGap
	height := chartTop + rowHeight*len(r.rows) + 8
	var b bytes.Buffer
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n", chartWidth, height)
	fmt.Fprintf(&b, "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n")
	fmt.Fprintf(&b, "<text x=\"8\" y=\"20\" font-size=\"15\">%s, %s</text>\n", escape(r.title), escape(r.unit))
	x := 8
	for i, s := range r.series {
		fmt.Fprintf(&b, "<rect x=\"%d\" y=\"34\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%d\" y=\"43\">%s</text>\n", x, colors[i%len(colors)], x+14, escape(s))
		x += 34 + 7*len(s)
	}
	for i, row := range r.rows {
		y := chartTop + i*rowHeight
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", labelWidth-6, y+(rowHeight-rowGap)/2+4, escape(row.cells[0]))
		for k, v := range row.values {
			if v <= 0 {
				continue
			}
			w := v / most * (chartWidth - labelWidth - 70)
			fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/><text x=\"%.1f\" y=\"%d\" font-size=\"9\">%.3g</text>\n",
				labelWidth, y+k*barHeight, w, barHeight-1, colors[k%len(colors)], labelWidth+w+3, y+k*barHeight+8, v)
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func escape(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(s))
	return b.String()
}
