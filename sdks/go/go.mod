module posthouse.example/posthouse-go

go 1.22
