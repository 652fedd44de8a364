// The lock of etcd's own client for Go, in a process of its own.
//
//	etcd_mutex HOST:PORT KEY
//
// reads orders, a line each, and answers with a line: "cycles N" with the seconds that N cycles took, "window SECONDS HOLD_MS" with how
// often the lock was had in that time.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{os.Args[1]}})
	check(err)
	defer client.Close()
	session, err := concurrency.NewSession(client)
	check(err)
	defer session.Close()
	mutex := concurrency.NewMutex(session, os.Args[2])
	cycle := func(hold time.Duration) {
		check(mutex.Lock(context.Background()))
		time.Sleep(hold)
		check(mutex.Unlock(context.Background()))
	}
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		var count int
		var seconds, holdMs float64
		if _, err := fmt.Sscanf(orders.Text(), "cycles %d", &count); err == nil {
			began := time.Now()
			for range count {
				cycle(0)
			}
			fmt.Println(time.Since(began).Seconds())
			continue
		}
		_, err := fmt.Sscanf(orders.Text(), "window %f %f", &seconds, &holdMs)
		check(err)
		until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
		had := 0
		for time.Now().Before(until) {
			cycle(time.Duration(holdMs * float64(time.Millisecond)))
			had++
		}
		fmt.Println(had)
	}
}
