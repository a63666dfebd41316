package netns

import "testing"

// ForTest returns a namespace that is closed at the end of the test.
func ForTest(t testing.TB, name string) *Namespace {
	t.Helper()
	n, err := New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}
