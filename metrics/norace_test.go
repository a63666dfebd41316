//go:build !race

package metrics

import "time"

const answerWithin = 100 * time.Millisecond
