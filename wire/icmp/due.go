package icmp

import "nmfwd/wire"

// OptionProblem returns the error due about a packet whose IPv4 options, or IPv6
// hop-by-hop options, a router cannot go by: those that wire.ScanOptions and
// wire.ScanHopByHop call bad.
func OptionProblem(p []byte) (Error, bool) {
	if p[0]>>4 == 4 {
		ip := wire.IPv4(p)
		s, at := wire.LocateOption(ip.Options())
		return Error{Kind: ParameterProblem, Pointer: wire.IPv4Len + at}, s&wire.BadOption != 0
	}
	ip := wire.IPv6(p)
	s, at := wire.LocateOption6(p[wire.IPv6Len:min(ip.TotalLen(), len(p))])
	e := Error{Kind: ParameterProblem, Pointer: wire.IPv6Len + at}
	if s&wire.UnknownOption != 0 {
		e.Code = BadOption
	}
	return e, ip.NextHeader() == wire.ProtoHopByHop && s&wire.BadOption != 0
}

// Due returns what is due about a whole packet to the router itself when no host
// stack is there to take it: nothing listens on any port, and nothing speaks
// protocols but ICMP. The Kind is EchoReply for ICMP: Reply knows more. A Reason
// says why nothing is due.
func Due(p []byte) (Error, Reason) {
	if p[0]>>4 == 6 {
		return due6(p)
	}
	ip := wire.IPv4(p)
	switch {
	case ip.Protocol() == wire.ProtoICMP:
		return Error{Kind: EchoReply}, OK
	case ip.IsFragment():
		return Error{}, Fragment // nobody is there for whom to put them together (RFC 1122, 3.3.2)
	case ip.Protocol() == wire.ProtoUDP:
		return Error{Kind: PortUnreachable}, OK
	}
	return Error{Kind: ProtocolUnreachable}, OK
}

// due6 is what the destination makes of extension headers (RFC 8200, 4).
func due6(p wire.IPv6) (Error, Reason) {
	field := 6 // that says what follows
	for next, at := p[6], wire.IPv6Len; ; {
		rest := p[min(at, len(p)):]
		switch next {
		case wire.ProtoICMPv6:
			return Error{Kind: EchoReply}, OK
		case wire.ProtoUDP:
			return Error{Kind: PortUnreachable}, OK
		case wire.ProtoNone:
			return Error{}, Silent
		case wire.ProtoFragment:
			return Error{}, Fragment
		case wire.ProtoHopByHop, wire.ProtoDestOpts:
			if next == wire.ProtoHopByHop && at != wire.IPv6Len {
				return Error{Kind: ProtocolUnreachable, Pointer: field}, OK
			}
			s, where := wire.LocateOption6(rest)
			switch where += at; {
			case s&wire.UnknownOption != 0:
				if p[where]&wire.OptIfUnknown == wire.OptSilent {
					return Error{}, Silent
				}
				return Error{Kind: ParameterProblem, Code: BadOption, Pointer: where}, OK
			case s&wire.BadOption != 0:
				return Error{Kind: ParameterProblem, Pointer: where}, OK
			}
		case wire.ProtoRouting:
			if len(rest) < 8 || (int(rest[1])+1)*8 > len(rest) {
				return Error{Kind: ParameterProblem, Pointer: at + 1}, OK
			}
			if rest[3] != 0 { // segments left, of a type that is not known here
				return Error{Kind: ParameterProblem, Pointer: at + 2}, OK
			}
		default:
			return Error{Kind: ProtocolUnreachable, Pointer: field}, OK
		}
		field, next = at, rest[0]
		at += (int(rest[1]) + 1) * 8
	}
}
