package fib

// A span is a range of addresses with one adjacency: it starts at hi, lo and
// ends before the next one.
type span struct {
	hi, lo uint64
	adj    uint32
}

func (s *span) addr4() uint32 { return uint32(s.hi >> 32) }

// A sweep turns the sorted routes within a region into spans. Routes of up to
// aliasBits bits are not seen: they are in the aliases.
type sweep struct {
	f     *family
	at    place  // of the next route that was not seen
	next  uint32 // its number, 0 after the last one
	open  []open // routes that cover where the sweep is, outermost first
	spans []span
}

// An open route ends at hi, lo.
type open struct {
	hi, lo uint64
	adj    uint32
}

// start begins the sweep of region, which is longer than aliasBits or equal.
func (s *sweep) start(f *family, region key) {
	s.f = f
	ehi, elo := region.last()
	s.open = append(s.open[:0], open{ehi, elo, f.inherited(region)})
	s.at = f.index.seek(f.entries, key{region.hi, region.lo, region.len + 1})
	s.next = f.index.at(s.at)
}

// cell returns the spans within c, which follows the one before within the
// region. The first one starts where c does. The result is valid until the
// next call.
func (s *sweep) cell(c key) []span {
	ehi, elo := c.last()
	s.spans = s.spans[:0]
	s.closeBefore(c.hi, c.lo)
	s.emit(c.hi, c.lo)
	for s.next != 0 {
		e := &s.f.entries[s.next]
		if e.hi > ehi || e.hi == ehi && e.lo > elo {
			break
		}
		s.closeBefore(e.hi, e.lo)
		hi, lo := e.last()
		s.open = append(s.open, open{hi, lo, e.adj})
		s.emit(e.hi, e.lo)
		s.at = s.f.index.next(s.at)
		s.next = s.f.index.at(s.at)
	}
	// What ends within the cell; what ends with it is left to the next one.
	s.closeBefore(ehi, elo)
	return s.spans
}

// still returns the range that holds at hi, which is behind the cell before, and
// the last hi that it holds up to.
func (s *sweep) still(hi uint64) (one []span, until uint64) {
	s.closeBefore(hi, 0)
	o := s.open[len(s.open)-1]
	until = o.hi
	if o.lo != ^uint64(0) {
		until--
	}
	if s.next != 0 {
		until = min(until, s.f.entries[s.next].hi-1)
	}
	s.spans = append(s.spans[:0], span{hi, 0, o.adj})
	return s.spans, until
}

// closeBefore ends the open routes whose last address is before hi, lo.
func (s *sweep) closeBefore(hi, lo uint64) {
	for {
		o := s.open[len(s.open)-1]
		if o.hi > hi || o.hi == hi && o.lo >= lo || len(s.open) == 1 {
			return
		}
		s.open = s.open[:len(s.open)-1]
		if o.lo++; o.lo == 0 {
			o.hi++
		}
		s.emit(o.hi, o.lo)
	}
}

// emit starts a span of the innermost open route.
func (s *sweep) emit(hi, lo uint64) {
	adj := s.open[len(s.open)-1].adj
	n := len(s.spans)
	if n > 0 && s.spans[n-1].hi == hi && s.spans[n-1].lo == lo {
		s.spans = s.spans[:n-1]
		n--
	}
	if n == 0 || s.spans[n-1].adj != adj {
		s.spans = append(s.spans, span{hi, lo, adj})
	}
}
