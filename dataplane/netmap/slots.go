package netmap

// Slots returns the numbers of slots that each RX and TX ring of the port called
// name has, without opening it.
func Slots(name string) (rx, tx int, err error) {
	k := System()
	kernelName, _, err := parseName(name, exists(k))
	if err != nil {
		return 0, 0, err
	}
	fd, err := open(k)
	if err != nil {
		return 0, 0, err
	}
	defer k.Close(fd)
	i, err := portInfo(k, fd, kernelName)
	return int(i.RXSlots), int(i.TXSlots), err
}
