package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// memoryLatency says what a read costs that waits for the one before, of random
// cache lines of so much memory in huge pages: what a lookup in a large table
// has to pay on this machine, whoever does it.
func memoryLatency() (string, error) {
	const most, line = 64 << 20, 64
	mem, free, err := buffers(most, true)
	if err != nil {
		return "", err
	}
	defer free()
	rnd := rand.New(rand.NewPCG(1, 1))
	var found []string
	for size := 512 << 10; size <= most; size *= 4 {
		n := size / line
		order := rnd.Perm(n)
		for i, l := range order {
			binary.LittleEndian.PutUint32(mem[l*line:], uint32(order[(i+1)%n]))
		}
		var took []float64
		at := uint32(0)
		for range 5 {
			start := time.Now()
			for range 1 << 18 {
				at = binary.LittleEndian.Uint32(mem[int(at)*line:])
			}
			took = append(took, float64(time.Since(start))/(1<<18))
		}
		sink += at
		name := fmt.Sprintf("%d KB", size>>10)
		if size >= 1<<20 {
			name = fmt.Sprintf("%d MB", size>>20)
		}
		found = append(found, fmt.Sprintf("%s %.0f ns", name, median(took)))
	}
	return "One random read after the other, within so much memory: " + strings.Join(found, ", ") + ".", nil
}
