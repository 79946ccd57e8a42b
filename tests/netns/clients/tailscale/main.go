// Asks for a port as Tailscale does, says what it got, and holds it until it is told to end.
//
//	tailscale-client GATEWAY OWN-ADDRESS LOCAL-PORT pcp|pmp
package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"tailscale.com/net/netmon"
	"tailscale.com/net/portmapper"
	"tailscale.com/util/eventbus"
)

func main() {
	gateway, own := netip.MustParseAddr(os.Args[1]), netip.MustParseAddr(os.Args[2])
	port, err := strconv.ParseUint(os.Args[3], 10, 16)
	if err != nil {
		panic(err)
	}
	only := os.Args[4]
	client := portmapper.NewClient(portmapper.Config{
		EventBus: eventbus.New(),
		NetMon:   netmon.NewStatic(),
		Logf:     func(format string, words ...any) { fmt.Printf("log "+format+"\n", words...) },
		DebugKnobs: &portmapper.DebugKnobs{
			VerboseLogs:     true,
			DisableUPnPFunc: func() bool { return true },
			DisablePMPFunc:  func() bool { return only != "pmp" },
			DisablePCPFunc:  func() bool { return only != "pcp" },
		},
	})
	defer client.Close()
	// Its own search takes no gateway in 100.64.0.0/10, which Tailscale uses for itself.
	client.SetGatewayLookupFunc(func() (netip.Addr, netip.Addr, bool) { return gateway, own, true })
	client.SetLocalPort(uint16(port))
	found, err := client.Probe(context.Background())
	fmt.Printf("probe pcp=%v pmp=%v %v\n", found.PCP, found.PMP, err)
	for range 100 {
		if external, ok := client.GetCachedMappingOrStartCreatingOne(); ok {
			fmt.Printf("mapped %v\n", external)
			os.Stdin.Read(make([]byte, 1))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	fmt.Println("refused")
	os.Exit(1)
}
