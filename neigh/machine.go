package neigh

import (
	"fmt"
	"net/netip"
	"time"

	"nmfwd/wire"
)

// Times and numbers of the state machine. Those with a name there are those of
// RFC 4861, section 10.
const (
	MaxSolicit      = 3                // MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT
	RetransTimer    = time.Second      // RETRANS_TIMER: between two questions
	ReachableTime   = 30 * time.Second // REACHABLE_TIME: how long an answer holds, times minRandom to maxRandom
	DelayFirstProbe = 5 * time.Second  // DELAY_FIRST_PROBE_TIME: how long a hint is waited for

	FailedTime = 5 * time.Second  // how long it is remembered that there was no answer; a gateway is asked for again then
	StaleTime  = 20 * time.Minute // how long a neighbor without packets is remembered (RFC 1122, 2.3.2.1)
	SystemTime = 10 * time.Second // how long the system may take to find out a neighbor

	minRandom, maxRandom = 0.5, 1.5 // MIN_RANDOM_FACTOR, MAX_RANDOM_FACTOR
)

// An EventKind is what has to be done about a neighbor.
type EventKind uint8

const (
	Ask         EventKind = iota // ask the link for its MAC address, or the system to do that
	Verify                       // ask MAC alone whether it still has the address
	Known                        // forward to it by MAC
	Gone                         // do not forward to it; nobody asks for it any more
	Unreachable                  // it does not answer: what waits for it cannot be delivered
)

var eventNames = [...]string{"ask", "verify", "known", "gone", "unreachable"}

// String returns the name of k.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}

// An Event is something that the table wants done.
type Event struct {
	Kind EventKind
	Key
	MAC   wire.MAC // Verify, Known
	Stale bool     // Known: call Use when a packet is forwarded to it
}

// Take returns what has to be done since the last call, in order. The result is
// the caller's.
func (t *Table) Take() []Event {
	events := t.events
	t.events = nil
	return events
}

func (t *Table) tell(e Event) { t.events = append(t.events, e) }

// An Answer says what can be done with a packet for a neighbor.
type Answer uint8

const (
	Refused  Answer = iota // nothing: no such neighbor, or there are too many unknown ones
	Wait                   // keep it: the neighbor is asked for
	Forward                // send it
	NoAnswer               // give it up: the neighbor did not answer, and too many are asked for to ask again
)

var answerNames = [...]string{"refused", "wait", "forward", "no answer"}

// String returns the name of a.
func (a Answer) String() string {
	if int(a) < len(answerNames) {
		return answerNames[a]
	}
	return fmt.Sprintf("answer(%d)", uint8(a))
}

// Use says that a packet is for the neighbor k.
func (t *Table) Use(now time.Duration, k Key) Answer {
	t.now = now
	e := t.entries[k]
	if e == nil {
		if !isNeighbor(k.Addr) || !t.mayAsk(now, k.Port) {
			return Refused
		}
		if e = t.createUnanswered(k); e == nil {
			return Refused
		}
		t.ask(now, e)
		return Wait
	}
	switch e.State {
	case Incomplete:
		return Wait
	case Failed: // the last question was a RetransTimer ago: asked anew it gets no more of them
		if !t.mayAsk(now, k.Port) {
			return NoAnswer
		}
		e.asks = 0
		t.ask(now, e)
		return Wait
	case Stale:
		t.delay(now, e)
	}
	return Forward
}

// Keep makes keys, in place of those that there were, the neighbors that are
// kept known whether packets come for them or not: gateways.
func (t *Table) Keep(now time.Duration, keys map[Key]bool) {
	t.now = now
	for k, e := range t.entries {
		if e.kept && !keys[k] {
			e.kept = false
			t.enter(e, e.State, e.deadline)
		}
	}
	for k := range keys {
		e := t.entries[k]
		switch {
		case e != nil && e.kept:
		case e == nil:
			if e = t.create(k); e != nil {
				e.kept = true
				t.ask(now, e)
			}
		default:
			e.kept = true
			if e.State == Stale {
				t.stale(now, e)
			} else {
				t.enter(e, e.State, e.deadline)
			}
		}
	}
}

// Doubt says that the link of a port was lost and is back: what is behind it may
// be another one. What was known to work is verified before its time, and what
// did not answer is asked for again: gateways at once, others when a packet comes.
func (t *Table) Doubt(now time.Duration, port uint16) {
	for _, e := range t.entries {
		switch {
		case e.Port != port:
		case (e.State == Reachable || e.State == Delay) && t.ports[port].source == Link:
			t.stale(now, e)
		case e.unanswered() && e.kept:
			e.asks = 0
			t.ask(now, e)
		case e.State == Failed:
			t.remove(e)
		}
	}
}

// An Advert is what a reply or an advertisement says of an address.
type Advert struct {
	MAC       wire.MAC // where the address is, 0 when that is not said
	Solicited bool     // it answers a question of ours
	Override  bool     // it replaces what is known
}

// Advertised takes what a station on p says without being asked by anyone else:
// that it has addr (RFC 4861, 7.2.5). The MAC address is one of a station.
func (t *Table) Advertised(now time.Duration, p *Port, addr netip.Addr, a Advert) {
	t.now = now
	e := t.entries[Key{p.Num, addr}]
	if e == nil || e.State == Static || p.Source == System || p.Owns(addr) || p.IsOwnMAC(a.MAC) {
		return
	}
	other := a.MAC != 0 && a.MAC != e.MAC
	switch {
	case e.unanswered() && a.MAC == 0:
		return
	case other && !a.Override && !e.unanswered():
		if e.State == Reachable {
			t.stale(now, e)
		}
		return
	case other:
		e.MAC = a.MAC
	}
	switch {
	case a.Solicited:
		t.reachable(now, e)
	case other || e.unanswered():
		t.stale(now, e)
	}
}

// Heard takes what a station on p says of itself when it asks for an address of
// the router: that it has addr and is at mac (RFC 826; RFC 4861, 7.2.3). It may
// be new, if addr is on the link. The MAC address is one of a station.
func (t *Table) Heard(now time.Duration, p *Port, addr netip.Addr, mac wire.MAC) {
	t.now = now
	if p.Source == System || p.Owns(addr) || p.IsOwnMAC(mac) {
		return
	}
	e := t.entries[Key{p.Num, addr}]
	switch {
	case e == nil:
		if !p.OnLink(addr) {
			return
		}
		if e = t.create(Key{p.Num, addr}); e == nil {
			return
		}
	case e.State == Static, !e.unanswered() && e.MAC == mac:
		return
	}
	e.MAC = mac
	t.stale(now, e)
}

// An Update is what the system says of a neighbor on a port whose source is
// System: its state, and its MAC address where that is known.
type Update struct {
	Entry
	Gone bool // the system has no such neighbor any more
}

// Follow takes what the system says. A neighbor that the system asks for by
// itself is none of the table's. One that fails after it was known is forgotten:
// the system asks anew for the next packet, and so does the table.
func (t *Table) Follow(now time.Duration, u Update) {
	t.now = now
	k, mac, s := u.Key, u.MAC, u.State
	if u.Gone {
		t.forget(now, k)
		return
	}
	e := t.entries[k]
	known := s != Incomplete && s != Failed
	if known && t.check(k, mac) != nil || e != nil && e.State == Static {
		return
	}
	if e == nil {
		if !known {
			return
		}
		if e = t.create(k); e == nil {
			return
		}
	}
	switch s {
	case Incomplete:
		t.enter(e, Incomplete, now+SystemTime)
	case Failed:
		switch {
		case !e.unanswered():
			t.forget(now, k)
		case e.State == Incomplete && now < e.since+RetransTimer && e.asks < MaxSolicit:
			t.askAnew(now, e) // nobody could have answered yet: somebody made it forget the question
		default:
			t.fail(now, e)
		}
	case Stale:
		e.MAC = mac
		t.stale(now, e)
	case Delay, Probe:
		e.MAC = mac
		t.enter(e, s, now+SystemTime)
	default:
		e.MAC = mac
		t.enter(e, Reachable, 0)
	}
}

// forget takes word that the system has forgotten k. It has forgotten questions
// for k too.
func (t *Table) forget(now time.Duration, k Key) {
	switch e := t.entries[k]; {
	case e == nil, e.State == Static, e.State == Failed && e.kept:
	case e.State == Incomplete, e.kept:
		e.asks = 0
		t.askAnew(now, e)
	default:
		t.remove(e)
	}
}

// askAnew has the system asked again for e. What is forgotten again and again
// gets no more questions than others.
func (t *Table) askAnew(now time.Duration, e *entry) {
	if t.mayAsk(now, e.Port) {
		t.ask(now, e)
	} else {
		t.fail(now, e)
	}
}

// Next returns when Expire is to be called, and whether at all.
func (t *Table) Next() (time.Duration, bool) {
	if len(t.timers) == 0 {
		return 0, false
	}
	return t.timers[0].deadline, true
}

// Expire makes happen what happens by itself until now.
func (t *Table) Expire(now time.Duration) {
	t.now = now
	for len(t.timers) > 0 && t.timers[0].deadline <= now {
		t.expire(now, t.timers[0])
	}
}

func (t *Table) expire(now time.Duration, e *entry) {
	system := t.ports[e.Port].source == System
	switch {
	case e.State == Incomplete && !system && e.asks < MaxSolicit:
		if e.kept || t.mayAsk(now, e.Port) {
			t.ask(now, e)
		} else { // as if the question was lost
			e.asks++
			t.enter(e, Incomplete, now+RetransTimer)
		}
	case e.State == Incomplete:
		t.fail(now, e)
	case e.State == Reachable, system && e.State == Delay, system && e.State == Probe:
		t.stale(now, e)
	case e.State == Delay:
		e.asks = 0
		t.probe(now, e)
	case e.State == Probe && e.asks < MaxSolicit:
		t.probe(now, e)
	case e.kept: // Probe or Failed: once more from the beginning
		e.asks = 0
		t.ask(now, e)
	default:
		t.remove(e)
	}
}

// ask asks for e, first or again.
func (t *Table) ask(now time.Duration, e *entry) {
	wait := RetransTimer
	if t.ports[e.Port].source == System {
		wait = SystemTime
	}
	e.asks++
	t.enter(e, Incomplete, now+wait)
	t.tell(Event{Kind: Ask, Key: e.Key})
}

func (t *Table) probe(now time.Duration, e *entry) {
	e.asks++
	t.enter(e, Probe, now+RetransTimer)
	t.tell(Event{Kind: Verify, Key: e.Key, MAC: e.MAC})
}

func (t *Table) reachable(now time.Duration, e *entry) {
	f := minRandom + t.random()*(maxRandom-minRandom)
	t.enter(e, Reachable, now+time.Duration(f*float64(ReachableTime)))
}

// stale makes e one whose MAC address is to be verified: when a packet is for it,
// or at once if e is kept. There is no delay then, for that waits for hints from
// upper layers (RFC 4861, 7.3.2), which a router does not have.
func (t *Table) stale(now time.Duration, e *entry) {
	switch {
	case e.kept && t.ports[e.Port].source == System:
		t.delay(now, e)
	case e.kept:
		e.asks = 0
		t.probe(now, e)
	case t.ports[e.Port].source == System:
		t.enter(e, Stale, 0)
	default:
		t.enter(e, Stale, now+StaleTime)
	}
}

// delay makes e one that is in use and will be verified.
func (t *Table) delay(now time.Duration, e *entry) {
	if t.ports[e.Port].source != System {
		t.enter(e, Delay, now+DelayFirstProbe)
		return
	}
	t.enter(e, Delay, now+SystemTime)
	t.tell(Event{Kind: Ask, Key: e.Key})
}

func (t *Table) fail(now time.Duration, e *entry) {
	waited := e.State == Incomplete
	if e.State != Failed {
		e.asks = 0
		t.enter(e, Failed, now+FailedTime)
	}
	if waited {
		t.tell(Event{Kind: Unreachable, Key: e.Key})
	}
}

// enter puts e into a state, which ends by itself at a time, or never if that
// is 0, and tells forwarding what is different.
func (t *Table) enter(e *entry, s State, until time.Duration) {
	t.count(e, -1)
	e.since = t.now
	if e.State = s; s != Incomplete && s != Probe && s != Failed {
		e.asks = 0
	}
	t.count(e, 1)
	c := classUsed
	switch {
	case e.kept, s == Static:
		c = classNone
	case s == Failed:
		c = classFailed
	case s == Incomplete:
		c = classIncomplete
	case s == Stale:
		c = classStale
	}
	if c != e.class {
		t.classify(e, c)
	}
	t.schedule(e, until)

	known, stale := !e.unanswered(), s == Stale
	switch {
	case known && (!e.told || e.toldMAC != e.MAC || e.toldStale != stale):
		e.told, e.toldMAC, e.toldStale = true, e.MAC, stale
		t.tell(Event{Kind: Known, Key: e.Key, MAC: e.MAC, Stale: stale})
	case !known && e.told:
		e.told = false
		t.tell(Event{Kind: Gone, Key: e.Key})
	}
}

// createUnanswered is create for a neighbor that is asked for.
func (t *Table) createUnanswered(k Key) *entry {
	p := &t.ports[k.Port]
	if failed, asked := &p.old[classFailed], &p.old[classIncomplete]; failed.n+asked.n >= MaxUnanswered {
		if old := failed.first(); old != nil {
			t.remove(old)
		} else {
			t.remove(asked.first())
		}
	}
	return t.create(k)
}

// mayAsk reports whether a question for an unknown neighbor may be sent on port
// now, and takes it into account.
func (t *Table) mayAsk(now time.Duration, port uint16) bool {
	p := &t.ports[port]
	p.asks = min(AskBurst, p.asks+(now-p.askedAt).Seconds()*AskRate)
	p.askedAt = now
	if p.asks < 1 {
		return false
	}
	p.asks--
	return true
}
