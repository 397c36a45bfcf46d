//go:build tools

// Package tools pins grpcurl, a client of any gRPC service; ../test_grpcurl.py builds and runs it.
package tools

import _ "github.com/fullstorydev/grpcurl/cmd/grpcurl"
