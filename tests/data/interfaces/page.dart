import 'package:flutter/material.dart';

class A extends StatelessWidget {
  @override
  Widget build(BuildContext c) {
    return MaterialApp(title: 'T', home: Scaffold(
      appBar: AppBar(title: const Text('Bar')),
      body: Center(child: Column(
        children: <Widget>[
          if (a > 1) const Text('Hi $name'),
          TextField(decoration: InputDecoration(labelText: 'Name')),
          ElevatedButton(onPressed: () { go(); }, child: const Text('Go')),
        ],
      )),
    ));
  }
}
