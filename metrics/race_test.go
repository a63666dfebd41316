//go:build race

package metrics

import "time"

// answerWithin is longer where the race detector slows all down.
const answerWithin = time.Second
